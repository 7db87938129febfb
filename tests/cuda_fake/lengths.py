"""Layers of GPT-2 small through one graph, at every length up and down and in random order, counted on a fake driver:
`PYTHONPATH=.:tests python -m cuda_fake.lengths [--layers 12] [--lengths 1024] [--dtype f16]`. Then calls that the emulator runs:
the same bits as without graphs, `--narrow` of 2 layers of GPT-2's form and width 64, `--wide` of a layer of width 768.

Every call is held against a full comparison: the nodes that were updated are those whose function, grid or arguments differ from
those of the call before; and what the graph launches is what the same call launches without graphs, in order, kernel by kernel,
argument by argument, but for the addresses of its own memory. Bytes of one graph a length are those of an executable with the
nodes that the length launches.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from cuda_fake.fake_graphs import Executable, size_of
from cuda_fake.fake_kernels import KernelWork
from cuda_fake.fake_state import CONTEXT_BASE, FakeState
from cuda_fake.fake_torch import FakeTorch

import tilewright as tw
from tilewright import ops

COPIES = ("cuMemcpyDtoDAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync")
_LEAST_ADDRESS = 1 << 32  # of the emulator's global memory
ALLOCATIONS = ("cuMemAlloc", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFree", "cuMemFreeAsync")


def layers(count: int, width: int, heads: int, longest: int, dtype: str, graphs: str) -> tw.CompiledFunction:
    """GPT-2's layers: norms first, causal attention, GELU."""
    g = ops.Graph()
    x = g.input("x", [1, "S", width], dtype)
    for n in range(count):
        weights = ops.EncoderWeights.inputs(g, width, 4 * width, f"h{n}_", dtype)
        x = ops.transformer_encoder_layer(x, weights, heads, causal=True, norm_first=True)
    g.output(x)
    return tw.compile(g, {"S": (1, longest)}, target="cuda:sm_90a", options={"graphs": graphs})


def orders(longest: int, seed: int = 0) -> Iterator[tuple[str, list[int]]]:
    """The lengths of each pass."""
    up = list(range(1, longest + 1))
    mixed = list(up)
    random.Random(seed).shuffle(mixed)
    yield from (("up", up), ("down", up[::-1]), ("random", mixed))


def launched(fake: Any, call: Callable[[], object]) -> list[KernelWork]:
    """What a call launches, in order. None of it is run."""
    works = list[KernelWork]()
    fake.run_kernel = works.append
    try:
        result = call()
        _drain(fake)
        del result
    finally:
        del fake.run_kernel
    return works


def unlike(some: list[KernelWork], others: list[KernelWork]) -> str:
    """How two lists of launches differ in more than the addresses of memory that is theirs alone; "" where they do not."""
    if len(some) != len(others):
        return f"{len(some)} launches for {len(others)}"
    there, back = dict[bytes, bytes](), dict[bytes, bytes]()
    for number, (a, b) in enumerate(zip(some, others, strict=True)):
        if (a.symbol, a.grid, a.block, a.shared, a.cluster) != (b.symbol, b.grid, b.block, b.shared, b.cluster):
            return f"launch {number}: {a.symbol} {a.grid} for {b.symbol} {b.grid}"
        for x, y in zip(_words(a), _words(b), strict=True):
            if x == y:
                continue
            if there.setdefault(x, y) != y or back.setdefault(y, x) != x:
                return f"launch {number}, {a.symbol}: {x.hex()} for {y.hex()}"
            if min(int.from_bytes(x, "little"), int.from_bytes(y, "little")) < _LEAST_ADDRESS:
                return f"launch {number}, {a.symbol}: an argument is {x.hex()} for {y.hex()}"
    return ""


def _words(work: KernelWork) -> Iterator[bytes]:
    for arg in work.args:
        yield from (arg[i : i + 8] for i in range(0, len(arg), 8))


def counted(fake: Any, torch: FakeTorch, functions: tuple[tw.CompiledFunction, tw.CompiledFunction], longest: int, width: int,
            dtype: str) -> tuple[list[str], int]:
    """The passes, with no kernel run. functions: with graphs, and without. What is said of each, and bytes of one graph a length;
    AssertionError where an update is missing or too many."""
    fn, plain = functions
    numpy = {"f16": np.float16, "f32": np.float32}[dtype]
    inputs = {a.name: a for a in fn.inputs}
    weights = [torch.tensor(np.zeros(tuple(map(int, a.dims)), numpy)) for a in fn.inputs if a.name != "x"]
    x = torch.tensor(np.zeros((1, longest, width), numpy))  # a caller's buffer, of which calls take the first rows
    assert next(iter(inputs)) == "x"
    def at(length: int) -> Any:
        return x.as_strided((1, length, width), [])

    lines, alone = [], dict[int, int]()
    wanted = {length: launched(fake, partial(plain, at(length), *weights)) for length in range(1, longest + 1)}
    assert unlike(wanted[1], wanted[longest]), "every length launches the same: nothing would be seen"
    for name, lengths in orders(longest):
        fake.log.clear()
        taken, before, start, wrong = torch.taken, fake.instantiated, time.process_time(), 0
        updates: list[int] = []
        for length in lengths:
            found = _executable(fake)
            old = {} if found is None else _seen(found)
            fake.updates.clear()
            said = unlike(launched(fake, partial(fn, at(length), *weights)), wanted[length])
            assert not said, f"S = {length}: {said}"
            now = _executable(fake)
            assert now is not None
            alone[length] = size_of([w for n, w in now.works.items() if now.enabled[n]])
            if found is not None and now is found:
                new = _seen(now)
                differ = {node for node in new if new[node] != old[node]}
                told = {node for node, enabled in fake.updates if enabled is None}
                wrong += told != differ
                updates.append(len(told))
        calls = Counter(n for n, _ in fake.log)
        copies, allocations = (sum(calls[n] for n in names) for names in (COPIES, ALLOCATIONS))
        lines.append(f"{name}: {len(lengths)} calls, {fake.instantiated - before} graphs made, {copies} copies, {allocations} "
                     f"allocations of the driver, {torch.taken - taken} of torch, updates a call "
                     f"{sum(updates) / max(1, len(updates)):.1f} (most {max(updates)}), {wrong} unlike a full comparison, "
                     f"all launches as without graphs, {time.process_time() - start:.1f} s")
        assert not wrong
        assert name == "up" or not copies + allocations + torch.taken - taken + fake.instantiated - before
    return lines, sum(alone.values())


def _executable(fake: FakeState) -> Executable | None:
    return next((o for o in fake._objects.values() if isinstance(o, Executable)), None)


def _seen(executable: Executable) -> dict[int, tuple[Any, ...]]:
    """What the driver knows of each node."""
    return {n: (w.kernel, w.grid, w.block, w.shared, w.args, w.cluster) for n, w in executable.works.items()}


def equal(fake: FakeState, torch: FakeTorch, dtype: str, form: tuple[int, int, int], lengths: list[int]) -> str:
    """Calls with a graph and without: AssertionError where their bits differ. form: layers, width, heads."""
    numpy, (count, width, heads) = {"f16": np.float16, "f32": np.float32}[dtype], form
    functions = [layers(count, width, heads, 1024, dtype, graphs) for graphs in ("on", "off")]
    rng, begin = np.random.default_rng(0), time.process_time()
    deviation = width**-0.5
    weights = [torch.tensor((deviation * rng.standard_normal(tuple(map(int, a.dims)))).astype(numpy))
               for a in functions[0].inputs[1:]]
    for length in lengths:
        x = torch.tensor(rng.standard_normal((1, length, width)).astype(numpy))
        results = [fn(x, *weights) for fn in functions]
        _drain(fake)
        a, b = (r.get() for r in results)
        assert np.isfinite(a).all()
        np.testing.assert_array_equal(a, b)
    listed = ", ".join(map(str, lengths))
    took = time.process_time() - begin
    return f"{count} layers of width {width}, S = {listed}: the bits of calls without a graph, {took:.1f} s"


def _drain(fake: Any) -> None:
    for stream in fake._streams.values():
        fake.drain(stream)


def main() -> None:
    from cuda_fake.fake_driver import FakeDriver

    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--lengths", type=int, default=1024)
    parser.add_argument("--dtype", choices=("f16", "f32"), default="f16")
    parser.add_argument("--narrow", type=int, nargs="*", default=[1, 2, 3, 17, 16, 15, 64, 63, 33, 5])
    parser.add_argument("--wide", type=int, nargs="*", default=[])
    given = parser.parse_args()
    fake = FakeDriver().install()
    fake.contexts()[:] = [CONTEXT_BASE]
    sys.modules["torch"] = torch = FakeTorch(fake)
    fn = layers(given.layers, 768, 12, given.lengths, given.dtype, "on")
    print(f"{given.layers} layers of GPT-2 small in {given.dtype}, S in 1..{given.lengths}: {len(fn.program.calls)} calls")
    plain = layers(given.layers, 768, 12, given.lengths, given.dtype, "off")
    lines, alone = counted(fake, torch, (fn, plain), given.lengths, 768, given.dtype)
    print("\n".join(lines))
    (report,) = fn.graphs().streams
    print(fn.graphs())
    print(f"bytes: {report.bytes} of one graph for all lengths; {given.lengths} graphs, one a length, by the same count: "
          f"{alone}, {alone / report.bytes:.0f} times as many", flush=True)
    for form, lengths in (((2, 64, 2), given.narrow), ((1, 768, 12), given.wide)):
        if lengths:
            print(equal(fake, torch, given.dtype, form, lengths), flush=True)
    print(f"errors: {fake.errors}, unknown: {fake.unknown}")


if __name__ == "__main__":
    main()
