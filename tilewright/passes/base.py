"""Pass and PassPipeline: a pass is a frozen dataclass whose fields are its options; a pipeline is a plain list of passes.

Text form, as on the command line: `tile-rows{rows=8 unroll=4}`; an MLIR pass of the bindings is `mlir{pipeline="cse"}`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.passes.mlir import PassManager, ir
from tilewright.passes.spaces.option_text import from_options, spec_of
from tilewright.runtime.errors import PassError


@dataclass(frozen=True)
class Pass:
    """One transformation of a module, in place. Subclasses set `name` and implement `run`."""

    name: ClassVar[str] = ""

    def run(self, module: ir.Module) -> None:
        raise AssertionError(f"{type(self).__name__} does not implement run")

    def spec(self) -> str:
        """The pass as text, with the options that differ from their defaults."""
        return spec_of(self.name, self)

    @classmethod
    def parse(cls, options: dict[str, str]) -> Pass:
        made: Pass = from_options(cls, cls.name, options)
        return made


@dataclass(frozen=True)
class Mlir(Pass):
    """A pipeline of the bindings' own passes over the whole module, e.g. `canonicalize,cse`."""

    name: ClassVar[str] = "mlir"
    pipeline: str = "canonicalize,cse"

    def run(self, module: ir.Module) -> None:
        with module.context:
            PassManager.parse(f"builtin.module({self.pipeline})").run(module.operation)


def until_stable(what: str, round_: Callable[[], bool], rounds: int) -> None:
    """Repeat `round_` until it says that it changed nothing.

    Args:
        what: the name of the pass, for the error.
        rounds: more than any function takes; a pass that works against itself ends here.
    Raises:
        PassError: the last of `rounds` still changed something.
    """
    for _ in range(rounds):
        if not round_():
            return
    raise PassError(f"pass {what} did not come to an end: it still changes the function after {rounds} rounds; leave it out with "
                    "a pipeline of your own, and report the module")


Callback = Callable[[str, ir.Module, "Pass"], None]


@dataclass(frozen=True)
class PassPipeline:
    """Passes run in order; the IR is verified before and after each.

    callback: called as callback("before" | "after" | "failed", module, pass): dumping, timing and reproducers hook in here.
    """

    passes: Sequence[Pass]
    callback: Callback | None = None

    def run(self, module: ir.Module) -> ir.Module:
        for step in self.passes:
            if self.callback:
                self.callback("before", module, step)
            done = False
            try:
                with module.context, ir.Location.unknown():
                    step.run(module)
                    module.operation.verify()
                done = True
            except (ir.MLIRError, ValueError, RuntimeError) as error:
                raise PassError(f"pass {step.spec()} failed: {error}") from error
            finally:
                if not done and self.callback:
                    self.callback("failed", module, step)
            if self.callback:
                self.callback("after", module, step)
        return module

    def spec(self) -> str:
        return ",".join(p.spec() for p in self.passes)
