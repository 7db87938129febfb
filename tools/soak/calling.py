"""Actors that call loaded functions: callers with several threads, one that forks amid calls, one that pickles."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pickle import dumps, loads
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.load.function import CompiledFunction
from tools.soak.actor import Actor, Beat, Step, Verdict
from tools.soak.cases import DELICATE, Case, Model, as_tuple, bad_calls, bits
from tools.soak.conditions import CALM, CLOCKS, FLOATING_POINT, around_call
from tools.soak.messages import Outcome

_THREADS = 3
_ROUNDS = 40  # calls of a thread in one step
_FORK_SECONDS = 30.0


@dataclass(frozen=True)
class Known:
    """A loaded function at one shape, and the bits that it must give."""

    fn: CompiledFunction
    case: Case
    args: Sequence[Any]
    results: Sequence[np.ndarray[Any, Any]]
    wanted: bytes

    def call(self, threads: int, into: bool, condition: str = CALM) -> Verdict | None:
        """One call, into poisoned memory or memory of its own; what is wrong with it, or None."""
        out: Any = None
        if into:
            out = tuple(np.frombuffer(b"\xa5" * r.nbytes, r.dtype).reshape(r.shape).copy() for r in self.results)
        with around_call(condition):
            got = as_tuple(self.fn(*self.args, out=out, threads=threads))
        if bits(got) == self.wanted:
            return None
        return Verdict(Outcome.WRONG, f"other bits with {threads} threads, out={into}", case=self.case)


def known(fn: CompiledFunction, case: Case) -> Known | Verdict:
    """The function at a shape, judged by the reference; the verdict where it is wrong."""
    args = case.arguments()
    results = as_tuple(fn(*args, threads=1))
    reason = case.reason_wrong(results)
    if reason is not None:
        return Verdict(Outcome.WRONG, reason, case=case)
    return Known(fn, case, args, results, bits(results))


class Calling(Actor):
    """What the actors with loaded functions share: the delicate model and random ones, each at some shapes."""

    models, shapes = 3, 3

    def prepare(self, beat: Beat) -> None:
        self.held: list[Known] = []
        self.unfit: list[Verdict] = []
        for number in range(self.models):
            saved = sorted(p.name for p in self.place.models.glob("*.tw")) if number else []
            model = Model(self.seed, self.rng.randrange(20) if number else DELICATE)
            if saved:
                model = Model.of_file(self.seed, self.rng.choice(saved))
            cases = [model.case(self.rng) for _ in range(self.shapes)]
            beat(cases)
            fn = tw.load(self.place.models / model.file_name) if saved else model.compile()
            for case in cases:
                found = known(fn, case)
                if isinstance(found, Known):
                    self.held.append(found)
                else:
                    self.unfit.append(found)

    @property
    def cases(self) -> list[Case]:
        return [held.case for held in self.held]

    def unfit_step(self) -> Step | None:
        """A step that tells of what `prepare` found wrong, once; a function at a shape that is wrong is called no more."""
        if not self.unfit:
            return None
        told, self.unfit = self.unfit, []
        return Step("call", lambda: told)


class Caller(Calling):
    """Lives long. Several threads call several functions with one and two threads, whatever their floating-point modes."""

    conditions = (*FLOATING_POINT, *CLOCKS)
    stays = True
    warm_after = 12
    models, shapes = 4, 4

    def prepare(self, beat: Beat) -> None:
        super().prepare(beat)
        self.pool = ThreadPoolExecutor(_THREADS)
        self.step = 0

    def next(self) -> Step:
        if (unfit := self.unfit_step()) is not None:
            return unfit
        self.step += 1
        if self.step % 4 == 0:
            return Step("bad call", self._bad, self.cases)
        seeds = [self.rng.randrange(2**31) for _ in range(_THREADS)]
        return Step("call", lambda: self._calls(seeds), self.cases)

    def _calls(self, seeds: Sequence[int]) -> list[Verdict]:
        found = [v for verdicts in self.pool.map(self._some, seeds) for v in verdicts]
        time.sleep(0.02)
        return [Verdict(count=_ROUNDS * len(seeds) - len(found)), *found[:3]]

    def _some(self, seed: int) -> list[Verdict]:
        """What one thread finds."""
        rng, found = np.random.default_rng(seed), []
        for _ in range(_ROUNDS if self.held else 0):
            verdict = self.held[rng.integers(len(self.held))].call(int(rng.integers(1, 3)), bool(rng.integers(2)), self.condition)
            if verdict is not None:
                found.append(verdict)
        return found

    def _bad(self) -> list[Verdict]:
        """Every call that one case must refuse."""
        verdicts, refused = [], 0
        if not self.held:
            return []
        chosen = self.rng.choice(self.held)
        for bad in bad_calls(chosen.case):
            try:
                chosen.fn(*bad.args, **bad.named)
                verdicts.append(Verdict(Outcome.WRONG, f"not refused: {bad.what}", case=chosen.case, args=bad.args))
            except TilewrightError:
                refused += 1
            except Exception as error:
                words = f"{bad.what}: {type(error).__name__}: {error}"
                verdicts.append(Verdict(Outcome.RAW, words, case=chosen.case, args=bad.args))
        return [Verdict(Outcome.TYPED, count=refused), *verdicts]


class Forker(Calling):
    """Forks while other threads call; the child calls the same functions."""

    conditions = (*FLOATING_POINT, *CLOCKS)

    def next(self) -> Step:
        return self.unfit_step() or Step("fork", self._fork, self.cases)

    def _fork(self) -> list[Verdict]:
        stop = threading.Event()
        with ThreadPoolExecutor(2) as pool:
            calling = [pool.submit(self._keep_calling, stop, number) for number in range(2)]
            try:
                time.sleep(self.rng.uniform(0.001, 0.05))
                child = os.fork()
                if not child:
                    os._exit(self._in_child())
                ended = _ended(child)
            finally:
                stop.set()
            return [ended, *(verdict for found in calling if (verdict := found.result()))]

    def _keep_calling(self, stop: threading.Event, number: int) -> Verdict | None:
        """Call until told to stop, or until something is wrong."""
        while self.held and not stop.is_set():
            if wrong := self.held[number % len(self.held)].call(2, False, self.condition):
                return wrong
        return None

    def _in_child(self) -> int:
        """0 when every function gives the bits that it gave in the parent."""
        with suppress(Exception):
            return 3 if any(k.call(threads, False) for k in self.held for threads in (1, 2)) else 0
        return 4


def _ended(child: int) -> Verdict:
    """How a forked child ended."""
    deadline = time.monotonic() + _FORK_SECONDS
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                return Verdict(Outcome.CRASH, f"the child of a fork ended by signal {-code}")
            outcomes = {0: Outcome.RIGHT, 3: Outcome.WRONG}
            return Verdict(outcomes.get(code, Outcome.RAW), f"the child of a fork ended with {code}" if code else "")
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Verdict(Outcome.HANG, f"the child of a fork did not end in {_FORK_SECONDS:g} s")


class Pickler(Calling):
    """Pickles functions, copies them, and calls what comes back."""

    conditions = tuple(CLOCKS)

    def next(self) -> Step:
        return self.unfit_step() or Step("pickle", self._pickle, self.cases)

    def _pickle(self) -> list[Verdict]:
        verdicts = []
        for held in self.held:
            data = dumps(held.fn)
            for again in (loads(data), copy.deepcopy(held.fn)):
                other = Known(again, held.case, held.args, held.results, held.wanted)
                verdicts += [other.call(threads, True) or Verdict() for threads in (1, 2)]
        return verdicts
