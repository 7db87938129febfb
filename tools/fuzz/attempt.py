"""One mutant: read, passed through the graph passes and, where asked, compiled, run and compared with the reference.

As a worker, `python -m tools.fuzz.attempt`: one JSON `Mutant` a line on stdin, one `Verdict` a line on stdout. Processor time is
limited, so a mutant that hangs ends the process (SIGPROF), as one that crashes does; the last line of stderr names the phase.
"""

from __future__ import annotations

import faulthandler
import os
import re
import resource
import signal
import sys
import traceback
from typing import Any

import msgspec
import numpy as np

from tilewright.compiler.api import compile as compile_model
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.cli.run import tolerance_of
from tilewright.compiler.cli.sampling import shapes_of
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.options import CompileOptions
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.frontends.ingest import ingest
from tilewright.compiler.reference import compare, evaluate
from tilewright.compiler.verification.random_inputs import random_inputs
from tilewright.runtime.errors import IngestError, PassError, TilewrightError
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.shape import Expr
from tilewright.runtime.target import Target
from tilewright.runtime.tensor import DType

HANG = 20.0  # seconds of processor time
MEMORY = 8 << 30
LARGEST = 1 << 16  # elements of the arguments and results together that are still compared
_TARGET = Target.parse("host")
_ASKED = re.compile(r'"([^"\n]+)": tw\.Dim\(')
Array = np.ndarray


class Mutant(msgspec.Struct, frozen=True):
    """A text, which of its functions, whether it is compiled and run too, and the seed of its arguments."""

    text: str
    function: str | None
    whole: bool
    seed: int


class Verdict(msgspec.Struct, frozen=True):
    """right, refused (a typed error), read (the graph passes took it), compiled (too large to compare), unknown (the reference
    refuses it), pass (a PassError), raw, wrong; of a lost process crash and hang."""

    kind: str
    detail: str = ""


def attempt(mutant: Mutant) -> Verdict:
    """What becomes of a mutant in this process."""
    try:
        return _whole(mutant) if mutant.whole else _read(mutant)
    except PassError as error:
        return Verdict("pass", str(error))
    except TilewrightError as error:
        return Verdict("refused", str(error))
    except Exception as error:  # whatever it is: what is raised here is what is looked for
        return Verdict("raw", "".join(traceback.format_exception(error)))


def _read(mutant: Mutant) -> Verdict:
    _phase("graph passes")
    outline(Compilation(mutant.text, _ranges(mutant), _TARGET, function=mutant.function))
    return Verdict("read")


def _ranges(mutant: Mutant) -> dict[str, tuple[int, int]]:
    """A range for each dim that it asks for."""
    try:
        ingest(mutant.text, {}, mutant.function)
    except IngestError as error:
        asked = _ASKED.findall(str(error).rpartition("paste and edit")[2])
        if not asked:
            raise
        return dict.fromkeys(asked, (1, 9))
    return {}


def _whole(mutant: Mutant) -> Verdict:
    _phase("graph passes")
    ranges = _ranges(mutant)
    _phase("compile")
    fn = compile_model(mutant.text, ranges, options=CompileOptions(builder=LocalBuilder(_TARGET)), function=mutant.function)
    for number, dims in enumerate(shapes_of(fn.program.ranges(), 2, mutant.seed)):
        if _elements(fn, dims) > LARGEST:
            return Verdict("compiled")
        _phase("arguments")
        inputs = random_inputs(fn.program, dims, mutant.seed + number)
        _phase("reference")
        try:
            wanted = evaluate(fn.program.source, inputs)
        except TilewrightError as error:
            return Verdict("unknown", str(error))
        _phase("call")
        found = fn(*(a.item() if p.dims is None else a for a, p in zip(inputs, fn.program.inputs, strict=True)))
        results = found if isinstance(found, tuple) else (found,)
        problem = _problem(fn, inputs, list(results), wanted)
        if problem is not None:
            return Verdict("wrong", f"at {dims}: {problem}")
    return Verdict("right")


def _elements(fn: CompiledFunction, dims: dict[str, int]) -> int:
    shapes = [[Expr.parse(d).evaluate(dims) for d in a.dims or ()] for a in (*fn.program.inputs, *fn.program.outputs)]
    work = fn.memory(**dims).arena // 4
    return work + sum(int(np.prod(np.asarray(s, dtype=object))) for s in shapes)


def _problem(fn: CompiledFunction, inputs: list[Array], results: list[Array], wanted: list[Array]) -> str | None:
    types = [a.dtype for a in (*fn.program.inputs, *fn.program.outputs) if a.dims is not None]
    bound = tolerance_of([*types, *(t for t in DType if t.is_float and t.signless.value in fn.program.source)])
    for number, (got, want) in enumerate(zip(results, wanted, strict=True)):
        if got.shape != want.shape:
            return f"result {number}: shape {got.shape}, the reference has {want.shape}"
        difference = compare(got, want)
        if not difference.ok(10 * bound.norm, 10 * bound.peak) and not _ill_conditioned(fn, inputs, number, got, want):
            return f"result {number}: {difference}"
    return None


def _ill_conditioned(fn: CompiledFunction, inputs: list[Array], number: int, got: Array, want: Array) -> bool:
    """Does rounding the arguments move the reference as far as the result lies from it?"""
    rng = np.random.default_rng(0)
    near = [a + (2.0**-7 * rng.choice((-1.0, 1.0), a.shape) * a).astype(a.dtype) if a.dtype.kind == "f" else a for a in inputs]
    moved = np.abs(evaluate(fn.program.source, near)[number].astype(np.float64) - want.astype(np.float64))
    with np.errstate(all="ignore"):
        distance = np.abs(got.astype(np.float64) - want.astype(np.float64))
        return bool(np.linalg.norm(distance) <= 8 * np.linalg.norm(moved)) or not np.isfinite(moved).all()


def _phase(name: str) -> None:
    print(f"phase: {name}", file=sys.stderr, flush=True)


def main() -> None:
    """Answer mutants until the input ends."""
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Mutant)
    for line in sys.stdin.buffer:
        mutant = decoder.decode(line)
        signal.setitimer(signal.ITIMER_PROF, HANG)
        answers.write(msgspec.json.encode(attempt(mutant)) + b"\n")
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.flush()


if __name__ == "__main__":
    main()
