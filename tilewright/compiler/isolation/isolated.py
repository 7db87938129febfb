"""Compiling in a process of its own, so that a crash of MLIR or LLVM over a model is an error here."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import msgspec

from tilewright.compiler.bundles import bundle_of
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.isolation.compile_request import STAGE, CompileReply, CompileRequest
from tilewright.runtime import knobs
from tilewright.runtime.errors import BuildError
from tilewright.runtime.program.artifact import Artifact, Bundle
from tilewright.search.runner.line_process import LineProcess, WorkerLostError

_MODULE = "tilewright.compiler.isolation.compile_worker"
_NO_LIMIT = 1e6  # seconds: a search takes what its options say


def compiled_apart(compilation: Compilation) -> Bundle:
    """What `bundle_of` gives, made by a worker process.

    With a callback, a builder or progress, which live in this process, the worker only tries the import and the graph passes.

    Raises:
        BuildError: the worker crashed; names what it was at. What the compile itself raises is raised here.
    """
    options = compilation.options
    if options.callback or options.builder or options.progress or options.farm:
        tried_apart(compilation)
        return bundle_of(compilation)
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        output = Path(folder) / "model.tw"
        _ask(CompileRequest.of(compilation, Path(folder) / "constants", output))
        opened = Artifact(output)  # open, so it stays when its name goes
        return next(opened.bundles(compilation.target.kind.value)).load()


def tried_apart(compilation: Compilation) -> None:
    """Import the model and run the graph passes in a worker process, before they run here. Raises as `compiled_apart` does."""
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        _ask(CompileRequest.of(compilation, Path(folder) / "constants", None))


def _ask(request: CompileRequest) -> None:
    worker = None
    try:
        worker = LineProcess(_MODULE)
        reply = msgspec.json.decode(worker.exchange(msgspec.json.encode(request) + b"\n", _NO_LIMIT), type=CompileReply)
        _tell(worker.log)
    except WorkerLostError as lost:
        raise BuildError(_crash(request, str(lost), lost.log), lost.log) from lost
    finally:
        if worker is not None:
            worker.end()
    if (error := reply.error()) is not None:
        raise error


def _crash(request: CompileRequest, how: str, log: str) -> str:
    """What to say of a worker that is lost."""
    stage = next((line[len(STAGE) :] for line in reversed(log.splitlines()) if line.startswith(STAGE)), "its start")
    dump = knobs.DUMP.get()
    kept = f"the module before it is kept by {knobs.DUMP.name}=FOLDER"
    if dump is not None:
        before = max(dump.glob("[0-9]*.mlir"), default=None)
        if before is None:
            dump.mkdir(parents=True, exist_ok=True)
            before = dump / "0000-model.mlir"
            before.write_bytes(request.text.encode() if request.path is None else Path(request.path).read_bytes())
        step = f" --pass '{stage.partition(' ')[2]}'" if stage.startswith("pass ") else ""
        kept = f"reproduce with: tilewright opt {before}{step}"
    return (f"the compiler crashed in {stage}: {how}; the model is damaged, or MLIR or LLVM has an error: export the model "
            f"again, or report it; {kept}")


def _tell(log: str) -> None:
    """What the worker logged and warned of."""
    said = [line for line in log.splitlines() if not line.startswith(STAGE)]
    if said:
        print("\n".join(said), file=sys.stderr)
