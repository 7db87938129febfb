"""JAX's XLA for the CPU: functions compiled for each shape, and what its program launches and moves."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from tools.bench.partition.inductor import Counted
from tools.bench.partition.maths import JaxMaths, Maths

_LINE = re.compile(r"^\s*(?:ROOT )?(%?[\w.-]+) = (.*?) ([\w-]+)\((.*)$")
_ARRAY = re.compile(r"\b(pred|[sufb]f?\d+)\[([\d,]*)\]")
_FREE = frozenset({"parameter", "tuple", "get-tuple-element", "bitcast", "constant", "iota"})
_WIDTH = {"pred": 1, "bf16": 2}


class Xla:
    """JAX on so many of this process's cores; UnsupportedError where it is not installed."""

    def __init__(self, threads: int) -> None:
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax as imported

        jax: Any = imported
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self.jax = jax
        self.maths: Maths = JaxMaths()

    def bound(self, function: Callable[..., Any], given: Sequence[Any], donated: Sequence[int] = ()) -> Callable[[], Any]:
        """A call with arrays of its own, which waits for its results."""
        arrays = [self.jax.numpy.asarray(a.numpy()) for a in given]
        call = self.jax.jit(function)
        wait = self.jax.block_until_ready
        return lambda: wait(call(*arrays))

    def counted(self, function: Callable[..., Any], given: Sequence[Any]) -> Counted:
        """Instructions of the entry that are executed, and the bytes of what they read and write."""
        arrays = [self.jax.numpy.asarray(a.numpy()) for a in given]
        text = self.jax.jit(function).lower(*arrays).compile().as_text()
        return counted_in(text)


def counted_in(text: str) -> Counted:
    """The same of a compiled module as text."""
    sizes: dict[str, int] = {}
    launches = moved = 0
    inside = False
    for line in text.splitlines():
        if line.startswith("ENTRY"):
            inside = True
        elif inside and line.startswith("}"):
            break
        found = _LINE.match(line) if inside else None
        if found is None:
            continue
        name, made, operation, rest = found.groups()
        sizes[name.lstrip("%")] = size = sum(_bytes(*each) for each in _ARRAY.findall(made))
        if operation not in _FREE:
            launches += 1
            read = re.findall(r"%([\w.-]+)", rest.split("), ")[0])
            moved += size + sum(sizes.get(operand, 0) for operand in dict.fromkeys(read))
    return Counted(launches, moved)


def _bytes(kind: str, dims: str) -> int:
    width = _WIDTH.get(kind) or int(re.sub(r"\D", "", kind)) // 8
    return width * math.prod(int(d) for d in dims.split(",") if d)
