"""GpuModels: models held against each other on a GPU, in a process of its own, as kernels are measured: one that fails costs
the process its CUDA context and only that model is lost."""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path
from types import TracebackType

import msgspec

from tilewright.compiler.verification.keep_what_gains import Verdict
from tilewright.compiler.verification.models_beside import Shapes
from tilewright.runtime.load.function import CompiledFunction
from tilewright.search.runner.line_process import LineProcess, WorkerLostError

MODEL_WORKER = f"{__package__}.gpu_model_worker"
_GRACE = 5.0  # seconds beyond the time that is left, in which a process may still answer


class Compare(msgspec.Struct, frozen=True):
    """Hold a saved model against another one. seconds: until the end of the time."""

    base: str
    new: str
    dims: tuple[dict[str, int], ...]
    bits: bool
    seconds: float


class Compared(msgspec.Struct, frozen=True):
    """A Verdict, whose infinities are None. lost: what the process has of the GPU may be gone, or in the
    middle of a capture."""

    ratio: float | None = None
    error: float | None = None
    rounds: int = 0
    wrong: str = ""
    lost: bool = False

    @staticmethod
    def of(verdict: Verdict) -> Compared:
        ratio, error = (v if math.isfinite(v) else None for v in (verdict.ratio, verdict.error))
        return Compared(ratio, error, verdict.rounds, verdict.wrong)

    def verdict(self) -> Verdict:
        ratio, error = (math.inf if v is None else v for v in (self.ratio, self.error))
        return Verdict(ratio, error, self.rounds, self.wrong)


class GpuModels:
    """The process starts with the first comparison and ends with the context. ordinal: of the GPU."""

    def __init__(self, ordinal: int = 0) -> None:
        self._ordinal = ordinal
        self._process: LineProcess | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="tilewright-models-")
        self._base: tuple[CompiledFunction, Path] | None = None
        self._saved = 0

    def compare(self, base: CompiledFunction, new: CompiledFunction, shapes: Shapes, end: float) -> Verdict:
        """The new model's time over the other's on the GPU; a crash, a hang or an error there is told as what is wrong with it.

        Args:
            end: of the time, by time.monotonic().
        """
        if self._base is None or self._base[0] is not base:
            self._base = base, self._file(base)
        path = self._file(new)
        left = max(0.0, end - time.monotonic())
        request = Compare(str(self._base[1]), str(path), tuple(map(dict, shapes.dims)), shapes.bits, left)
        try:
            if self._process is None or not self._process.alive:
                self._process = LineProcess(MODEL_WORKER, str(self._ordinal))
            line = self._process.exchange(msgspec.json.encode(request) + b"\n", left + _GRACE)
            reply = msgspec.json.decode(line, type=Compared)
        except WorkerLostError as error:
            said = error.log.strip().rpartition("\n")[2]
            reply = Compared(wrong=f"the process that measures models was lost: {error}{said and ': ' + said}", lost=True)
        except msgspec.DecodeError as error:
            reply = Compared(wrong=f"the reply of the process that measures models cannot be read: {error}", lost=True)
        if reply.lost:
            self._end()
        path.unlink(missing_ok=True)
        return reply.verdict()

    def __enter__(self) -> GpuModels:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _file(self, fn: CompiledFunction) -> Path:
        self._saved += 1
        path = Path(self._folder.name) / f"{self._saved}.tw"
        fn.save(path)
        return path
