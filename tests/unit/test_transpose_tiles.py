"""Elements computed from operands with another unit axis, by square tiles, at operands that end at pages nobody may touch."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import NUMPY, T, at_edge, guarded, load, workload

from tilewright.passes.families.host.transpose_tiles import TransposeTiles

SHAPES = ((1, 1, 1, 1), (2, 9, 2, 7), (1, 24, 3, 40), (1, 33, 1, 17), (2, 70, 1, 16), (0, 4, 2, 5))  # B, C, H, W
_AXES = "d0, d1, d2, d3"
_TURNS = {"last": ("d0, d3, d1, d2", ("B", "H", "W", "C"), "d3"), "first": ("d0, d2, d3, d1", ("B", "C", "H", "W"), "d1")}


def text(turn: str, element: str, low: int = 0, operands: int = 1) -> str:
    """y = x turned, its W with `low` zeros in front, or x + z turned, plus a value of each of the C channels; one operation.

    turn: "last" makes [B, H, W, C] of [B, C, H, W], "first" the other way round.
    """
    read, dims, channel = _TURNS[turn]
    wide = [f"W + {low}" if d == "W" and low else d for d in dims]
    source = ["B", "C", "H", "W"] if turn == "last" else ["B", "H", "W", "C"]
    at = source.index("W")
    x, z, c = T(element, source), T(element, [f"W + {low}" if d == "W" and low else d for d in source]), T(element, ("C",))
    y, names = T(element, wide), ["%p", "%z"][:operands]
    maps = ", ".join(f"affine_map<({_AXES}) -> ({m})>" for m in [*[read] * operands, channel, _AXES])
    add = f"arith.add{'f' if 'f' in element else 'i'}"
    zero = ("0.0" if "f" in element else "0") + f" : {element}"
    lows = ", ".join(str(low if a == at else 0) for a in range(4))
    sums = [f"%s{n} = {add} {'%a0' if n == 0 else f'%s{n - 1}'}, %a{n + 1} : {element}" for n in range(operands)]
    arguments = ", ".join(f"%a{n}: {element}" for n in range(operands + 2))
    extents = ", ".join("%width" if d.startswith("W") else f"%{d}" for d in wide)
    body = f"""%more = arith.constant {low} : index
      %width = arith.addi %W, %more : index
      %zero = arith.constant {zero}
      %p = tensor.pad %x low[{lows}] high[0, 0, 0, 0] {{ ^bb0(%i: index, %j: index, %k: index, %l: index):
        tensor.yield %zero : {element} }} : {x.type()} to {z.type()}
      %e = tensor.empty({extents}) : {y.type()}
      %n = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{", ".join(['"parallel"'] * 4)}]}}
        ins({", ".join([*names, "%c"])} : {", ".join([z.type()] * operands)}, {c.type()}) outs(%e : {y.type()}) {{
        ^bb0({arguments}):
          {" ".join(sums)}
          linalg.yield %s{operands - 1} : {element} }} -> {y.type()}"""
    given = {"x": x, "z": z, "c": c} if operands > 1 else {"x": x, "c": c}
    return workload(given, ("B", "C", "H", "W"), body, {"n": y})


def check(turn: str, element: str = "f32", low: int = 0, operands: int = 1, config: str = "generic{lanes=8 chunk=256}",
          target: str = "host") -> None:
    kernel, kind = load(text(turn, element, low, operands), config, target), np.dtype(NUMPY[element])
    random = np.random.default_rng(low)
    for sizes in SHAPES:
        b, c, h, w = sizes
        dims = {"B": b, "C": c, "H": h, "W": w}
        order, shape = (0, 2, 3, 1), (b, c, h, w)
        if turn == "first":
            order, shape = (0, 3, 1, 2), (b, h, w, c)
        at = 3 if turn == "last" else 2
        wide = tuple(n + low if a == at else n for a, n in enumerate(shape))
        arrays = [random.integers(0, 9, s).astype(kind) for s in (shape, wide, (c,))]
        x, z, bias = arrays
        padded = np.pad(x.astype("f8"), [(low, 0) if a == at else (0, 0) for a in range(4)])
        whole = (padded + z.astype("f8") if operands > 1 else padded).transpose(order)
        wanted = (whole + (bias if turn == "last" else bias[:, None, None])).astype(kind)
        out = guarded(wanted.shape, kind)
        kernel([at_edge(a) for a in (arrays if operands > 1 else [x, bias])], dims, [out], 3)
        np.testing.assert_array_equal(out.astype("f8"), wanted.astype("f8"), f"{sizes}")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("turn", ["last", "first"])
@pytest.mark.parametrize("low,operands", [(0, 1), (3, 1), (2, 2)])
def test_whole_and_partial_tiles(turn: str, low: int, operands: int) -> None:
    check(turn, low=low, operands=operands)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("element,lanes,turn", [("f64", 4, "last"), ("f16", 16, "first"), ("bf16", 8, "last"),
                                                ("i8", 32, "first"), ("i64", 4, "first")])
def test_element_types(element: str, lanes: int, turn: str) -> None:
    check(turn, element, low=1, config=f"generic{{lanes={lanes} chunk=64}}")


def test_a_target_without_avx512() -> None:
    for turn in _TURNS:
        check(turn, low=1, target="host:x86-64-v3")


def test_an_operand_that_is_read_twice_is_not_held() -> None:
    square, turned, same = T("f32", ("N", "N")), "affine_map<(d0, d1) -> (d1, d0)>", "affine_map<(d0, d1) -> (d0, d1)>"
    maps = f"{turned}, {same}, {same}"
    body = f"""%e = tensor.empty(%N, %N) : {square.type()}
      %n = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel", "parallel"]}}
        ins(%x, %x : {square.type()}, {square.type()}) outs(%e : {square.type()}) {{
        ^bb0(%u: f32, %v: f32, %o: f32):
          %s = arith.subf %u, %v : f32
          linalg.yield %s : f32 }} -> {square.type()}"""
    kernel = load(workload({"x": square}, ("N",), body, {"n": square}), "generic{lanes=8 chunk=256}", "host")
    for n in (1, 8, 19):
        x = np.random.default_rng(n).standard_normal((n, n)).astype("f4")
        out = guarded((n, n), np.dtype("f4"))
        kernel([at_edge(x)], {"N": n}, [out], 2)
        np.testing.assert_array_equal(out, x.T - x)


def test_units_hold_whole_lines_and_about_a_chunk() -> None:
    tiles = TransposeTiles(0, 3, across=1, along=2, block=1, line=16)
    assert (tiles.moving, tiles.abreast(8), tiles.abreast(32)) == (2, 2, 1)
    assert tiles.cuts(8, 4096) == {0: None, 1: 16, 2: 256}
    assert tiles.cuts(8, 16) == {0: None, 1: 16, 2: 8}
    assert TransposeTiles(0, 3, across=1, along=2, block=2, line=16).cuts(8, 4096) == {0: None, 2: 16, 1: 256}
