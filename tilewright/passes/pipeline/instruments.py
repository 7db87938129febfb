"""Instruments: callbacks of a PassPipeline that dump, print, time and reproduce.

Each is called as callback("before" | "after" | "failed", module, pass); `chain` joins several into one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tilewright.passes.base import Callback, Pass
from tilewright.passes.mlir import ir
from tilewright.runtime.errors import PassError

REPRODUCE = "reproduce with: "


def chain(*callbacks: Callback | None) -> Callback:
    """One callback that calls each of `callbacks` in turn; None entries are left out."""
    used = [c for c in callbacks if c is not None]

    def call(event: str, module: ir.Module, step: Pass) -> None:
        for callback in used:
            callback(event, module, step)

    return call


@dataclass
class Dump:
    """Writes the module after every pass to `folder`/0001-<function>-<pass>.mlir, numbered from 1."""

    folder: Path
    count: int = 0

    def __call__(self, event: str, module: ir.Module, step: Pass) -> None:
        if event == "before":
            return
        self.count += 1
        suffix = "-failed" if event == "failed" else ""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.count:04d}-{_function_name(module)}-{step.name}{suffix}.mlir"
        path.write_text(f"// after {step.spec()}{suffix}\n{module}")


@dataclass
class PrintAfterAll:
    """Prints the module after every pass; `stream` None means standard error at the time of printing."""

    stream: TextIO | None = None

    def __call__(self, event: str, module: ir.Module, step: Pass) -> None:
        if event == "after":
            print(f"// ----- after {step.spec()} -----\n{module}", file=self.stream or sys.stderr)


@dataclass
class PassTiming:
    """Collects the seconds that each pass took, in order, nested pipelines included."""

    clock: Callable[[], float] = time.perf_counter
    seconds: list[tuple[str, float]] = field(default_factory=list)
    started: list[float] = field(default_factory=list)

    def __call__(self, event: str, module: ir.Module, step: Pass) -> None:
        if event == "before":
            self.started.append(self.clock())
        else:
            self.seconds.append((step.spec(), self.clock() - self.started.pop()))

    def report(self) -> str:
        """A line per pass, slowest first, and the total."""
        lines = [f"{s * 1e3:9.2f} ms  {spec}" for spec, s in sorted(self.seconds, key=lambda t: -t[1])]
        return "\n".join([*lines, f"{sum(s for _, s in self.seconds) * 1e3:9.2f} ms  total"])


@dataclass
class Reproducer:
    """When a pass fails, writes the module as it was before it and raises PassError with the command that fails alike.

    folder: where the module goes; None: one folder per user beside the temporary files. Equal modules share a file.
    """

    folder: Path | None = None
    before: list[ir.Operation] = field(default_factory=list)

    def __call__(self, event: str, module: ir.Module, step: Pass) -> None:
        if event == "before":
            self.before.append(module.operation.clone())
            return
        original = self.before.pop()
        if event == "failed":
            self._report(original, step)

    def _report(self, original: ir.Operation, step: Pass) -> None:
        error = sys.exception()
        if isinstance(error, PassError) and REPRODUCE in str(error):
            return  # a pipeline inside the pass has reported it, closer to the cause
        reason = str(error) if isinstance(error, PassError) else f"pass {step.spec()} failed: {error}"
        raise PassError(f"{reason}\n{self._write(f'{original}', step)}") from error

    def _write(self, text: str, step: Pass) -> str:
        """The command that reproduces the failure, or why there is none."""
        folder = self.folder or Path(tempfile.gettempdir()) / f"tilewright-{os.getuid()}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        path = folder / f"reproduce-{_slug(step.name)}-{digest}.mlir"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_text(f"{text}\n")
        except OSError as problem:
            return f"the module is not kept: cannot write {path}: {problem.strerror}"
        return f"{REPRODUCE}tilewright opt {shlex.quote(str(path))} --pass {shlex.quote(step.spec())}"


def standard(callback: Callback | None = None, dump: Path | None = None) -> Callback:
    """What every pipeline of `compile` runs under: dumps into `dump` if given, the caller's own, the reproducer."""
    return chain(Dump(dump) if dump else None, callback, Reproducer(dump))


def _function_name(module: ir.Module) -> str:
    for op in module.body.operations:
        if "sym_name" in op.operation.attributes:
            return _slug(ir.StringAttr(op.operation.attributes["sym_name"]).value)
    return "module"


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "_", text)[:60]
