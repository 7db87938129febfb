"""Keys and values that a block table names, on the emulator under all of its checks: read where they lie, nothing gathered."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from attention_workloads import attention as attention_case
from gpu_harness import Placed, check, is_legal, random, run

import tilewright as tw
from tilewright import ops
from tilewright.compiler.compilation.compilation import Compilation
from tilewright.compiler.compilation.outlined_model import OutlinedModel, outline
from tilewright.passes.analysis.attention import Attention
from tilewright.passes.codegen.attention_mask import AttentionMask
from tilewright.passes.linalg.symbolic import SymbolicShapes
from tilewright.passes.mlir import functions, ir, new_context, operations
from tilewright.passes.spaces.gpu import gpu_attention_heuristics
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.emulator import EmulatorDevice
from tilewright.runtime.errors import DTypeError, ShapeError
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.target import Target

pytestmark = pytest.mark.usefixtures("built_here")

DIMS = {"B": (1, 8), "S": (1, 64), "P": (1, 100), "N": (0, 32)}
PAGE, GROUPS, HEADS, DEPTH = 16, 2, 4, 32
DECODE, PARTS = "gpu_attention{bm=16 bn=32}", "gpu_attention{bm=16 bn=32 split-kv=4}"
SINGLE = "gpu_attention{bm=32 bn=16 vec=1 index=64 queries-in-registers=false}"


@dataclass(frozen=True)
class Model:
    """One attention over pages. queries: of a sequence."""

    causal: bool = False
    lengths: bool = True
    queries: int | str = "S"
    page: int = PAGE
    depth: int = DEPTH
    element: str = "f16"

    def dims(self) -> dict[str, tuple[int, int]]:
        """Those of DIMS that it has."""
        return {name: r for name, r in DIMS.items() if name != "S" or self.queries == "S"}

    def graph(self) -> ops.Graph:
        g = ops.Graph()
        q = g.input("q", ["B", HEADS, self.queries, self.depth], self.element)
        k, v = (g.input(x, ["P", self.page, GROUPS, self.depth], self.element) for x in "kv")
        table = g.input("table", ["B", "N"], "i32")
        lengths = g.input("lengths", ["B"], "i32") if self.lengths else None
        g.output(ops.paged_attention(q, k, v, table, lengths, self.causal))
        return g

    def arrays(self, sizes: Mapping[str, int], lengths: list[int] | None, seed: int = 0) -> list[np.ndarray]:
        """q, k, v, table with entries that name no page, lengths."""
        rng, n = np.random.default_rng(seed), sizes["N"]
        rows = sizes["S"] if self.queries == "S" else int(self.queries)
        kind = np.float16 if self.element == "f16" else np.float32
        q = rng.standard_normal((sizes["B"], HEADS, rows, self.depth)).astype(kind)
        k, v = (rng.standard_normal((sizes["P"], self.page, GROUPS, self.depth)).astype(kind) for _ in range(2))
        table = rng.integers(0, sizes["P"], (sizes["B"], n)).astype(np.int32)
        table[:, :1], table[:, n // 2 : n // 2 + 1] = 10**9, -7
        return [q, k, v, table, *([np.array(lengths, np.int32)] if lengths is not None else [])]

    def expected(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, table: np.ndarray,
                 lengths: np.ndarray | None = None) -> np.ndarray:
        keys, rows = table.shape[1] * self.page, q.shape[2]
        inside = np.where((table < 0) | (table >= len(k)), len(k) - 1, table)
        k, v = (x[inside].reshape(len(q), keys, GROUPS, self.depth).transpose(0, 2, 1, 3).repeat(HEADS // GROUPS, 1).astype(float)
                for x in (k, v))
        end = np.full(len(q), keys) if lengths is None else lengths.astype(np.int64)
        last = end[:, None, None, None] - 1 + (np.arange(rows)[:, None] - rows + 1 if self.causal else 0)
        scores = np.where(np.arange(keys) <= last, q.astype(float) @ k.swapaxes(2, 3) / self.depth**0.5, -np.inf)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
            return np.nan_to_num(weights / weights.sum(-1, keepdims=True)) @ v


@functools.cache
def outlined(model: Model) -> OutlinedModel:
    """The model's operators, as sm_90a gets them."""
    return outline(Compilation(model.graph(), model.dims(), Target.parse("emulator:sm_90a")))


def attention(model: Model) -> Workload:
    (found,) = (w for w in outlined(model).workloads if w.kind is Kind.ATTENTION)
    return found


def verify(model: Model, config: str, sizes: Mapping[str, int], lengths: list[int] | None = None, seed: int | None = None,
          arch: str = "sm_80", device: EmulatorDevice | None = None) -> None:
    """Runs the kernel of one configuration; the emulator finds accesses outside of a tensor, and races."""
    w, arrays = attention(model), model.arrays(sizes, lengths)
    given, (local,) = list(arrays), outlined(model).uses[w.key]
    dims = {name: d.evaluate(sizes) for name, d in local.items()}
    inputs = []
    for operand in w.inputs:  # in the order in which the operator first reads them
        wanted = tuple(d.evaluate(dims) for d in operand.dims)
        number = next(i for i, x in enumerate(given) if x.size == np.prod(wanted) and x.dtype == operand.dtype.numpy)
        inputs.append(Placed(given.pop(number).reshape(wanted)))
    assert not given
    out = Placed(np.zeros([d.evaluate(dims) for d in w.outputs[0].dims], arrays[0].dtype))
    assert is_legal(w.ir, config, dims, [*inputs, out], arch)
    (got,) = run(w.ir, config, dims, inputs, [out], seed, arch, device)
    want = model.expected(*arrays)
    np.testing.assert_allclose(got.reshape(want.shape).astype(float), want, atol=4e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("config", [DECODE, PARTS])
@pytest.mark.parametrize("lengths", [[0, 1, 1 << 30], [37, 16, 80], [-5, 17, 33]], ids=str)
def test_a_step_of_decoding(config: str, lengths: list[int]) -> None:
    """Lengths of none, one and more keys than there are; within a page and at its end."""
    verify(Model(queries=1), config, {"B": 3, "P": 9, "N": 5}, lengths)


@pytest.mark.parametrize("sizes", [{"B": 2, "S": 20, "P": 7, "N": 4}, {"B": 1, "S": 33, "P": 1, "N": 3}], ids=str)
def test_without_lengths(sizes: Mapping[str, int]) -> None:
    verify(Model(lengths=False), "gpu_attention{bm=32 bn=32 stages=3}", sizes)
    verify(Model(lengths=False), SINGLE, sizes)


@pytest.mark.parametrize("page,depth", [(1, 32), (24, 16), (64, 80)])
def test_pages(page: int, depth: int) -> None:
    """Of one key, of no power of two, of more keys than a step has."""
    verify(Model(queries=1, page=page, depth=depth), PARTS, {"B": 2, "P": 9, "N": 130 // page}, [100, 65])


@pytest.mark.parametrize("seed", [0, 1])
def test_any_order_of_warps_and_copies(seed: int) -> None:
    verify(Model(queries=1), "gpu_attention{bm=16 bn=16 stages=3 split-kv=2}", {"B": 2, "P": 9, "N": 5}, [70, 33], seed)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("config", [DECODE, PARTS, "gpu_attention{bm=64 bn=32 stages=3}"])
@pytest.mark.parametrize("mask", ["", "lengths", "causal"])
def test_layouts_and_masks(mask: str, config: str) -> None:
    """Operands with gaps between pages, keys and queries; entries of the table from -7 to 7."""
    case = attention_case(mask=mask, depth=32, columns=48, page=8)
    for b, m, c, pages in ((2, 20, 9, 5), (1, 1, 3, 1), (3, 5, 1, 12)):
        dims = {"B": b, "M": m, "N": 8 * c, "P": pages, "C": c}
        assert check(case.text, config, case.inputs, case.results, dims, case.reference, tolerance=2e-3,
                         pads={1: (0, 8, 16), 2: (8, 0, 8), 3: (0, 3), 0: (0, 0, 8)})


def test_keys_behind_a_length_are_not_read() -> None:
    counts = []
    for length in (32, 256):
        device = EmulatorDevice("sm_80")
        verify(Model(queries=1), DECODE, {"B": 1, "P": 9, "N": 16}, [length], device=device)
        counts.append(sum(n for name, n in device.launches[0].instructions.items() if name.startswith("mma")))
    assert counts[1] == 8 * counts[0]


@pytest.mark.parametrize("config", [DECODE, PARTS])
def test_what_lies_behind_a_length_counts_for_nothing(config: str) -> None:
    """Pages that nobody has written to yet may hold anything."""
    case, c = attention_case(mask="lengths", depth=32, columns=32, page=8), 6
    dims = {"B": 1, "M": 3, "N": 8 * c, "P": c, "C": c}
    arrays = [random(t, dims, i) for i, t in enumerate(case.inputs)]
    arrays[3], arrays[4] = np.arange(c, dtype=np.int32)[None], np.array([-5], np.int32)
    wanted = case.reference(*(a.astype(np.float64) for a in arrays))
    for pages in arrays[1:3]:
        pages.reshape(8 * c, -1)[8 * c - 13:] = np.nan
    (got,) = run(case.text, config, dims, [Placed(a) for a in arrays], [Placed(np.zeros((1, 3, 32), np.float32))])
    np.testing.assert_allclose(got, wanted, atol=2e-3)


@pytest.mark.parametrize("model", [Model(queries=1), Model(causal=True)], ids=["decoding", "causal"])
def test_lengths_are_found(model: Model) -> None:
    """As how far a query sees; a mask that is made in front of the attention moves into it."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(attention(model).ir)
        (fn,) = functions(module)
        shapes = SymbolicShapes(fn)
        found = AttentionMask.of(Attention.of(operations(fn.regions[0].blocks[0])[:-1], shapes), shapes)
    assert len(found.lengths) == 1
    assert found.scale is not None
    assert (found.row is not None) is model.causal


@pytest.mark.parametrize("depth,bn", [(64, 64), (128, 32)])
def test_defaults_leave_registers_for_addresses(depth: int, bn: int) -> None:
    """A warp by itself copies 32 chunks of a step, so that nothing is spilled."""
    few, *_ = gpu_attention_heuristics.default(attention(Model(queries=1, depth=depth)), GpuLimits.of("sm_90a"))[0]
    assert (few.bm, few.bn) == (16, bn)


def from_torch(way: str) -> tuple[object, list[np.ndarray]]:
    """A module of PyTorch that gathers pages as its authors do, exported; and arguments."""
    torch = pytest.importorskip("torch")

    class Paged(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
            b, n = table.shape

            def pages(x: Any) -> Any:
                if way == "index":
                    found = x[table]
                elif way == "index_select":
                    found = x.index_select(0, table.flatten()).view(b, n, PAGE, GROUPS, DEPTH)
                else:
                    found = torch.nn.functional.embedding(table, x.view(-1, PAGE * GROUPS * DEPTH))
                return found.reshape(b, n * PAGE, GROUPS, DEPTH).transpose(1, 2)

            seen = (torch.arange(n * PAGE) < lengths[:, None])[:, None, None]
            return torch.nn.functional.scaled_dot_product_attention(q, pages(k), pages(v), attn_mask=seen, enable_gqa=True)

    arrays = Model(queries=1).arrays({"B": 2, "P": 9, "N": 5}, [37, 80])
    arrays[3] = np.abs(arrays[3]).astype(np.int64) % 9
    dim = torch.export.Dim
    batch, blocks, pages = dim("B", min=1, max=8), dim("N", min=1, max=32), dim("P", min=1, max=100)
    shapes = {"q": {0: batch}, "k": {0: pages}, "v": {0: pages}, "table": {0: batch, 1: blocks}, "lengths": {0: batch}}
    return torch.export.export(Paged(), tuple(map(torch.from_numpy, arrays)), dynamic_shapes=shapes), arrays


@pytest.mark.parametrize("way", ["index", "index_select", "embedding"])
def test_models_of_torch(way: str) -> None:
    """One kernel reads pages, beside one that says which sequences have keys at all."""
    exported, arrays = from_torch(way)
    fn = tw.compile(exported, target="emulator:sm_80")
    configs = [call.config for call in fn.explain(q_0=2, k_0=9, table_1=5).calls]
    assert [c.partition("{")[0] for c in configs] == ["gpu_rows", "gpu_attention"]
    np.testing.assert_allclose(np.asarray(fn(*arrays)).astype(float), Model(queries=1).expected(*arrays), atol=4e-3)


def test_on_the_host() -> None:
    model = Model(causal=True, element="f32")
    fn = tw.compile(model.graph(), DIMS, target="host")
    for sizes, lengths in (({"B": 2, "S": 20, "P": 7, "N": 4}, [64, 31]), ({"B": 3, "S": 1, "P": 3, "N": 1}, [3, 16, 0]),
                           ({"B": 1, "S": 3, "P": 3, "N": 0}, [7])):
        arrays = model.arrays(sizes, lengths)
        np.testing.assert_allclose(fn(*arrays), model.expected(*arrays), atol=2e-6)


def test_what_does_not_fit_is_refused() -> None:
    g = ops.Graph()
    q, k, table = g.input("q", ["B", 4, "S", 32]), g.input("k", ["P", 16, 2, 32]), g.input("t", ["B", "N"], "i32")
    with pytest.raises(ShapeError, match=r"paged_attention: q .* do not fit; wanted \[B, H, S, D\], \[P, 16, G, D\]"):
        ops.paged_attention(q, k, g.input("v", ["P", 8, 2, 32]), table)
    with pytest.raises(ShapeError, match="wanted one of each sequence"):
        ops.paged_attention(q, k, k, table, g.input("l", ["N"], "i32"))
    with pytest.raises(DTypeError, match="wanted integer indices, came f32"):
        ops.paged_attention(q, k, k, g.input("f", ["B", "N"]))
