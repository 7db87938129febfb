"""Mutants of MLIR text, each in a process that may crash: none may crash, hang, raise a raw error or give a wrong result.

    python -m tools.fuzz --count 20000 --seed 0 --workers 2 --out found.jsonl
    python -m tools.fuzz --seed 0 --only 1234          one mutant in this process, with its text

Every mutant is read and goes through the graph passes, every tenth is compiled, run and compared with the reference as well.
Exit code 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from tilewright.search.runner.line_process import LineProcess, WorkerLostError
from tools.fuzz.attempt import Mutant, Verdict, attempt
from tools.fuzz.corpus import function, texts, weight
from tools.fuzz.mutate import mutant

BAD = ("crash", "hang", "raw", "wrong")
WALL = 1200.0  # seconds; the limit of processor time is the worker's own
WHOLE = 10  # every tenth is compiled
REQUESTS = 300  # of a worker, then another takes its place: what MLIR keeps is given back


@dataclass
class Corpus:
    """The texts, and mutant `number` of `seed`, which depends on nothing else."""

    seed: int
    texts: list[str] = field(default_factory=texts)

    def mutant(self, number: int) -> Mutant:
        rng = random.Random(f"{self.seed}.{number}")
        text = rng.choices(self.texts, [weight(t) for t in self.texts])[0]
        return Mutant(mutant(text, rng), function(text, rng), number % WHOLE == 0, number)


def verdicts(corpus: Corpus, numbers: range, workers: int) -> Iterator[tuple[int, Verdict]]:
    """(number, verdict) of each mutant, in the order in which they are done."""
    todo: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Verdict] | BaseException] = queue.SimpleQueue()
    for number in [*numbers, *[None] * workers]:
        todo.put(number)
    for _ in range(workers):
        threading.Thread(target=_serve, args=(corpus, todo, done), daemon=True).start()
    for _ in numbers:
        found = done.get()
        if isinstance(found, BaseException):
            raise found
        yield found


def _serve(corpus: Corpus, todo: queue.SimpleQueue[int | None],
           done: queue.SimpleQueue[tuple[int, Verdict] | BaseException]) -> None:
    worker, served = None, 0
    try:
        while (number := todo.get()) is not None:
            if worker is None or served >= REQUESTS or not worker.alive:
                if worker is not None:
                    worker.end()
                worker, served = LineProcess("tools.fuzz.attempt"), 0
            served += 1
            done.put((number, ask(worker, corpus.mutant(number))))
    except BaseException as error:
        done.put(error)
    finally:
        if worker is not None:
            worker.end()


def ask(worker: LineProcess, asked: Mutant) -> Verdict:
    """The worker's verdict, or what became of it. A reference that takes too long says nothing about what is compiled."""
    try:
        return msgspec.json.decode(worker.exchange(msgspec.json.encode(asked) + b"\n", WALL), type=Verdict)
    except WorkerLostError as error:
        phase = error.log.rpartition("phase: ")[2].partition("\n")[0]
        if "SIGPROF" not in str(error) and "time limit" not in str(error):
            return Verdict("crash", f"{phase}: {error}\n{error.log[-2000:]}")
        return Verdict("compiled" if phase in ("arguments", "reference") else "hang", phase)


def main() -> int:
    """Run the command line; 1 when a mutant crashed, hung, raised a raw error or gave a wrong result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, help="this mutant alone, here")
    parser.add_argument("--out", type=Path, help="what is found, a JSON line each")
    given = parser.parse_args()
    corpus = Corpus(given.seed)
    if given.only is not None:
        one = corpus.mutant(given.only)
        print(one.text, one.function, sep="\n")
        print(attempt(one))
        return 0
    counts: Counter[str] = Counter()
    with open(given.out or "/dev/null", "a", encoding="utf-8") as out:
        for number, verdict in verdicts(corpus, range(given.start, given.start + given.count), given.workers):
            counts[verdict.kind] += 1
            _note(out, corpus, number, verdict)
    print(json.dumps(counts))
    return int(any(counts[kind] for kind in BAD))


def _note(out: IO[str], corpus: Corpus, number: int, verdict: Verdict) -> None:
    if verdict.kind in (*BAD, "pass", "unknown"):
        found = {"number": number, "kind": verdict.kind, "detail": verdict.detail, "text": corpus.mutant(number).text}
        print(json.dumps(found), file=out, flush=True)
        print(f"{number} {verdict.kind}: {verdict.detail.strip().splitlines()[-1][:200] if verdict.detail else ''}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
