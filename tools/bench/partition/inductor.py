"""What torch.compile makes of a function: loops over memory in the code that it writes, and the bytes that it counts for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_LOOP = re.compile(r"#pragma omp for|^ {4,8}for\(int64_t x0", re.MULTILINE)


@dataclass(frozen=True)
class Counted:
    """launches: kernels, or loops over memory; bytes: that they read and write."""

    launches: int
    bytes: int


def compiled(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """With dynamic shapes; extents of 0 and 1 are compiled for themselves, at their first call."""
    torch.compiler.reset()
    torch._dynamo.config.recompile_limit = 64
    made: Callable[..., Any] = torch.compile(function, dynamic=True)
    return made


def counted(torch: Any, function: Callable[..., Any], given: Sequence[Any]) -> Counted:
    """The outermost loops of its kernels, and their bytes at these arguments."""
    from torch._inductor import config, metrics
    from torch._inductor.utils import run_and_get_code

    torch.compiler.reset()
    metrics.reset()
    with config.patch({"fx_graph_cache": False}):
        _, codes = run_and_get_code(torch.compile(function, dynamic=True), *given)
    return Counted(sum(len(_LOOP.findall(code)) for code in codes), int(metrics.num_bytes_accessed))
