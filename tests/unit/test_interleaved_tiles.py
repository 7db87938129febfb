"""Transposed copies to few elements along the result, as whole vectors, at operands that end at pages nobody may touch."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import NUMPY, T, at_edge, guarded, load, workload

from tilewright.passes.families.host.interleaved_tiles import InterleavedTiles
from tilewright.passes.families.host.transpose_tiles import TransposeTiles
from tilewright.runtime.shape import Expr

SHAPES = ((1, 1, 1), (2, 3, 9), (3, 1, 40), (1, 2, 67), (0, 2, 5))  # B, H, W
_MAPS = "affine_map<(d0, d1, d2, d3) -> ({})>"


def text(count: int, element: str, low: int) -> str:
    """x [B, count, H, W] with `low` columns in front, as [B, H, W, count], a value added to each of the `count`."""
    x, c, y = T(element, ("B", count, "H", "W")), T(element, (count,)), T(element, ("B", "H", f"W + {low}", count))
    padded, made = f"tensor<?x{count}x?x?x{element}>", y.type()
    kinds, here = ", ".join(['"parallel"'] * 4), "d0, d1, d2, d3"
    ends, same = [f"{{indexing_maps = [{', '.join(map(_MAPS.format, maps))}], iterator_types = [{kinds}]}}"
                  for maps in (("d0, d3, d1, d2", here), (here, "d3", here))]
    add = f"arith.add{'f' if 'f' in element else 'i'} %u, %v : {element}" if element != "i1" else "arith.xori %u, %v : i1"
    zero = "false" if element == "i1" else ("0.0" if "f" in element else "0") + f" : {element}"
    body = f"""%more = arith.constant {low} : index
      %width = arith.addi %W, %more : index
      %zero = arith.constant {zero}
      %p = tensor.pad %x low[0, 0, 0, {low}] high[0, 0, 0, 0] {{ ^bb0(%i: index, %j: index, %k: index, %l: index):
        tensor.yield %zero : {element} }} : {x.type()} to {padded}
      %e = tensor.empty(%B, %H, %width) : {made}
      %t = linalg.generic {ends} ins(%p : {padded}) outs(%e : {made}) {{
        ^bb0(%u: {element}, %o: {element}): linalg.yield %u : {element} }} -> {made}
      %n = linalg.generic {same} ins(%t, %c : {made}, {c.type()}) outs(%e : {made}) {{
        ^bb0(%u: {element}, %v: {element}, %o: {element}):
          %s = {add}
          linalg.yield %s : {element} }} -> {made}"""
    return workload({"x": x, "c": c}, ("B", "H", "W"), body, {"n": y})


def check(count: int, element: str = "f32", low: int = 0, config: str = "generic{lanes=16 chunk=64}",
          target: str = "host") -> None:
    kernel, kind, random = load(text(count, element, low), config, target), np.dtype(NUMPY[element]), np.random.default_rng(count)
    for b, h, w in SHAPES:
        whole = element[0] == "i"
        x, c = ((random.integers(0, 2 if element == "i1" else 9, s) if whole else random.standard_normal(s)).astype(kind)
                for s in ((b, count, h, w), (count,)))
        out = guarded((b, h, w + low, count), kind)
        kernel([at_edge(x), at_edge(c)], {"B": b, "H": h, "W": w}, [out], 3)
        wide = np.pad(x, ((0, 0), (0, 0), (0, 0), (low, 0))).transpose(0, 2, 3, 1)
        want = wide ^ c if element == "i1" else (wide.astype("f8") + c.astype("f8")).astype(kind)
        np.testing.assert_array_equal(out.astype("f8"), want.astype("f8"))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 12, 14])
def test_any_number_of_elements(count: int) -> None:
    check(count, low=count % 3)


@pytest.mark.parametrize("element,count", [("f64", 3), ("f16", 6), ("bf16", 4), ("i8", 2), ("i8", 12), ("i64", 5), ("i1", 3)])
def test_element_types(element: str, count: int) -> None:
    check(count, element)


def test_a_target_without_avx512() -> None:
    for count in (2, 3, 6):
        check(count, low=1, config="generic{lanes=8 chunk=256}", target="host:x86-64-v3")


def test_results_that_are_no_run_in_memory() -> None:
    kernel = load(text(4, "f32", 2), "generic{lanes=16 chunk=64}", "host")
    x, c = np.random.default_rng(0).standard_normal((2, 4, 3, 21)).astype("f4"), np.arange(4, dtype="f4")
    out = guarded((2, 3, 23, 7), np.dtype("f4"))
    out[...] = 0
    kernel([at_edge(x), at_edge(c)], {"B": 2, "H": 3, "W": 21}, [out[..., 2:6]], 3)
    np.testing.assert_array_equal(out[..., 2:6], np.pad(x, ((0, 0), (0, 0), (0, 0), (2, 0))).transpose(0, 2, 3, 1) + c)
    assert not out[..., :2].any() and not out[..., 6:].any()


@pytest.mark.parametrize("element,count,lanes", [("f32", 2, 16), ("f32", 3, 16), ("f16", 5, 16), ("f64", 4, 8), ("i8", 7, 16)])
def test_tensors_joined_element_by_element(element: str, count: int, lanes: int) -> None:
    """Pairs of complex numbers, for one: the elements of the first, second and further tensors in turns."""
    part, whole = T(element, ("N", 1), 0), T(element, ("N", count))
    names = [f"x{i}" for i in range(count)]
    types = f"({', '.join([part.type()] * count)}) -> {whole.type()}"
    joined = f"%y = tensor.concat dim(1) {', '.join('%' + n for n in names)} : {types}"
    module = workload(dict.fromkeys(names, part), ("N",), joined, {"y": whole})
    kernel = load(module, f"generic{{lanes={lanes} chunk=128}}", "host")
    kind, random = np.dtype(NUMPY[element]), np.random.default_rng(count)
    for n in (0, 1, 15, 16, 17, 333):
        parts = [random.integers(-9, 9, (n, 1)).astype(kind) for _ in names]
        out = guarded((n, count), kind)
        kernel([at_edge(p) for p in parts], {"N": n}, [out], 3)
        np.testing.assert_array_equal(out.astype("f8"), np.concatenate(parts, 1).astype("f8"))


def test_what_is_interleaved() -> None:
    """Fewer elements than lanes, which lie beside the axis of the vectors, without a large odd factor."""
    tiles = TransposeTiles(0, None, 2, 3, (0, 3, 1, 2))  # type: ignore[arg-type]
    assert InterleavedTiles.of(tiles, Expr.of(14), 16) == InterleavedTiles(tiles, 14)
    apart = TransposeTiles(0, None, 1, 3, (0, 3, 1, 2))  # type: ignore[arg-type]
    for walk, length in ((tiles, Expr.of(16)), (tiles, Expr.of(11)), (tiles, Expr.dim("N")), (apart, Expr.of(4))):
        assert InterleavedTiles.of(walk, length, 16) is None
