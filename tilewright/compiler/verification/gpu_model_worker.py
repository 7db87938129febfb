"""A process that holds saved models against each other on a GPU: a request a line, a reply a line (gpu_models.py).

Started as `python -P -m tilewright.compiler.verification.gpu_model_worker ORDINAL`. Results are compared first. Then a call of
each model is captured as a CUDA graph, with arguments and results that lie on the GPU, and replays of the two take turns between
events. So caches are as calls that follow each other leave them: what a kernel wrote, the next one finds where it fits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import BinaryIO

import msgspec

from tilewright.compiler.verification.gpu_models import Compare, Compared
from tilewright.compiler.verification.models_beside import Called, Ratios, Shapes, verdict_of
from tilewright.compiler.verification.random_inputs import Array
from tilewright.runtime.cuda.arena import gpu
from tilewright.runtime.cuda.cuda_caller import CudaCaller
from tilewright.runtime.cuda.driver import CudaError
from tilewright.runtime.cuda.placed_call import PlacedCall
from tilewright.runtime.cuda.replays import WARM_SECONDS, Replays, times_beside
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.host.benchmark import Timing
from tilewright.runtime.load.devices import Cuda, caller_for
from tilewright.runtime.program.artifact import Artifact
from tilewright.search.runner.serving import reply_channel

TURN, WARM = 0.002, WARM_SECONDS  # seconds of a turn, and of the replays before the first one


def serve_models(requests: BinaryIO, replies: BinaryIO, ordinal: int) -> None:
    """Answer requests until the input ends or the GPU is lost."""
    loaded: dict[str, CudaCaller] = {}
    for line in requests:
        reply = _compared(msgspec.json.decode(line, type=Compare), loaded, ordinal)
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()
        if reply.lost:
            return


def _compared(request: Compare, loaded: dict[str, CudaCaller], ordinal: int) -> Compared:
    end = time.monotonic() + request.seconds
    try:
        for path in [p for p in loaded if p not in (request.base, request.new)]:
            del loaded[path]
        for path in (request.base, request.new):
            loaded[path] = loaded.get(path) or _model(path, ordinal)
        base, new = loaded[request.base], loaded[request.new]
        calls = Called(base.program, base.call), Called(new.program, new.call)
        return Compared.of(verdict_of(*calls, Shapes(request.dims, request.bits), _ratios(base, new), end))
    except (TilewrightError, MemoryError) as error:
        return Compared(wrong=f"{type(error).__name__}: {error}", lost=isinstance(error, CudaError))


def _model(path: str, ordinal: int) -> CudaCaller:
    opened = Artifact(path)
    [bundle] = opened.bundles("cuda")
    caller = caller_for(bundle.checked(), bundle.code(), bundle.constants(), Cuda(ordinal), None)
    assert isinstance(caller, CudaCaller)
    return caller


def _ratios(base: CudaCaller, new: CudaCaller) -> Ratios:
    def ratios(arrays: Sequence[Array], timing: Timing) -> list[float]:
        with ExitStack() as stack:
            stack.enter_context(gpu(base.ordinal).current())
            graphs = []
            for caller in (new, base):
                placed = PlacedCall(caller, arrays)
                stack.callback(placed.close)
                placed.enqueue(placed.device.stream)  # loads kernels and takes memory
                graphs.append(Replays(placed.device, placed.enqueue))
                stack.callback(graphs[-1].close)
            on_gpu = Timing(warmup=WARM, turn=TURN, fewest=timing.fewest, longest=timing.longest)
            return times_beside(graphs[0], graphs[1], on_gpu)

    return ratios


def main() -> None:
    replies = reply_channel()
    serve_models(sys.stdin.buffer, replies, int(sys.argv[1]))


if __name__ == "__main__":
    main()
