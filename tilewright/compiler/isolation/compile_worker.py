"""A process that compiles one model: a `CompileRequest` line on stdin, a `CompileReply` line on stdout.

Started as `python -P -m tilewright.compiler.isolation.compile_worker` by isolation/isolated.py. A crash of MLIR or LLVM ends this
process only; the last line `stage: ...` on stderr says what was being done.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from dataclasses import replace

import msgspec

from tilewright.compiler.bundles import bundle_of
from tilewright.compiler.compilation.outlined_model import outline
from tilewright.compiler.isolation.compile_request import STAGE, CompileReply, CompileRequest
from tilewright.passes.base import Pass
from tilewright.passes.mlir import ir
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.log import show_as_asked
from tilewright.runtime.program.artifact_writer import write_artifact


def answer(request: CompileRequest) -> CompileReply:
    """Do what is asked; an error that a user can cause is an answer too."""
    try:
        stage("the import of the model")
        compilation = request.compilation()
        compilation = replace(compilation, model_ir=compilation.model)  # imported once
        if request.output is None:
            outline(replace(compilation, options=replace(compilation.options, callback=_named)))
        else:
            write_artifact(request.output, [bundle_of(compilation, _named)], sync=False)
    except TilewrightError as error:
        return CompileReply.of(error)
    return CompileReply()


def stage(name: str) -> None:
    """Say what begins."""
    print(f"{STAGE}{name}", file=sys.stderr, flush=True)


def _named(event: str, module: ir.Module, step: Pass) -> None:
    stage(f"pass {step.spec()}" if event == "before" else "what follows " + step.spec())


def main() -> None:
    """Keep the reply channel to ourselves: whoever prints to stdout writes to stderr instead."""
    faulthandler.enable()
    show_as_asked()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        replies.write(msgspec.json.encode(answer(msgspec.json.decode(line, type=CompileRequest))) + b"\n")
        replies.flush()


if __name__ == "__main__":
    main()
