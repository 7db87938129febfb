"""Products of groups of rows, as in mixtures of experts.

Rows of one group lie side by side and have a weight of their own. How many rows a group has is data, which decide no shape:
each group's rows are padded to blocks of a few rows, as MegaBlocks has them (Gale et al. 2023), and a block is multiplied by the
weight that its group's number names. There are as many blocks as the worst case has.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.ops.body import Body, Scalar
from tilewright.compiler.ops.contractions import batch_matmul
from tilewright.compiler.ops.elements import element
from tilewright.compiler.ops.graph import Graph, Tensor, same_dtype, shown, want_equal, want_rank
from tilewright.compiler.ops.indexing import gather, want_indices
from tilewright.compiler.ops.pointwise import cast
from tilewright.compiler.ops.reshaping import reshape
from tilewright.compiler.ops.scans import cumsum
from tilewright.compiler.ops.sorting import searchsorted
from tilewright.runtime.shape import Expr
from tilewright.runtime.tensor import DType

# Rows of a block at most, as tools/bench/results/xeon-avx512.md has them: whole register blocks of 4, 6 and 12 rows.
BLOCK_ROWS = 12
TILE_ROWS = 16  # of 16-bit floats, which are multiplied by tiles of so many rows where there are such


def grouped_matmul(x: Tensor, w: Tensor, offsets: Tensor) -> Tensor:
    """Each group of rows times its own weight: x [S, K], w [E, K, N], offsets [E] -> [S, N], as torch's grouped_mm.

    offsets: where each group's rows end, integers that do not fall: rows offsets[e - 1] to offsets[e] (the first from row 0) are
    multiplied by w[e]. A group may be empty. Rows from the last offset on give zeros. 16-bit floats accumulate in f32.

    Raises:
        ShapeError: ranks or extents do not fit. DTypeError: x and w differ, or offsets that are no integers.
    """
    for what, t, rank in (("x", x, 2), ("the weight", w, 3), ("offsets", offsets, 1)):
        want_rank("grouped_matmul", what, t, rank)
    want_indices("grouped_matmul", offsets)
    same_dtype("grouped_matmul", [x, w])
    want_equal("grouped_matmul", f"the summed extents of {shown(x.dims)} and {shown(w.dims)}", x.dims[1], w.dims[1])
    want_equal("grouped_matmul", "the groups of the weight and the offsets", w.dims[0], offsets.dims[0])
    blocks = _Blocks.of(x.graph, x.dims[0], cast(offsets, DType.I64), TILE_ROWS if x.dtype.bytes == 2 else BLOCK_ROWS)
    found = batch_matmul(blocks.rows_of(x), gather(w, blocks.group))
    return blocks.rows_from(found)


class _Blocks:
    """Rows of groups in blocks of `height` rows. group: of each block; first: each group's first block; ends: its end of rows."""

    def __init__(self, rows: Expr, height: Expr, ends: Tensor, first: Tensor, group: Tensor) -> None:
        self.rows, self.height, self.ends, self.first, self.group = rows, height, ends, first, group

    @staticmethod
    def of(graph: Graph, rows: Expr, ends: Tensor, most: int) -> _Blocks:
        """Blocks of half of the rows that a group has on average, and up to `most`, so that few are in vain. A group of n rows
        has (n + height - 1) // height of them."""
        groups = ends.dims[0]
        height = graph.smaller(graph.larger(rows.ceildiv(2 * groups), Expr.of(1)), Expr.of(most))
        count = (rows + groups * (height - 1)) // height
        loops = ["d0"]

        def taken(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
            each, low = graph.number(region, height, "i64"), _start(region, ends, region.index(0))
            return (scalars[0] - low + (each - 1)).floor_divide(each)

        each = graph.generic([(ends, loops)], (graph.empty(DType.I64, [groups]), loops), ["parallel"], taken)
        last = cumsum(each)
        numbers = graph.generic([], (graph.empty(DType.I64, [count]), loops), ["parallel"],
                                lambda region, _, __: region.index(0).cast("i64"))
        found = searchsorted(last, numbers, right=True)
        group = graph.pointwise("group", lambda g: g.minimum(graph.number(g.body, groups - 1, "i64")), found)
        return _Blocks(rows, height, ends, last - each, group)

    def rows_of(self, x: Tensor) -> Tensor:
        """The rows of every block, [blocks, height, K]; rows beyond a group's end are others' or repeat the last."""
        g = x.graph

        def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
            group = scalars[0].cast("index")
            block = region.index(0) - element(region, self.first, [group]).cast("index")
            row = _start(region, self.ends, group).cast("index") + block * g.number(region, self.height, "index")
            return element(region, x, [row + region.index(1), region.index(2)])

        loops = ["d0", "d1", "d2"]
        into = (g.empty(x.dtype, [*self.group.dims, self.height, x.dims[1]]), loops)
        return g.generic([(self.group, ["d0"])], into, ["parallel"] * 3, body)

    def rows_from(self, blocks: Tensor) -> Tensor:
        """[blocks, height, N] -> [S, N]; zeros in rows of no group."""
        g = blocks.graph
        numbers = g.generic([], (g.empty(DType.I64, [self.rows]), ["d0"]), ["parallel"],
                            lambda region, _, __: region.index(0).cast("i64"))
        group = searchsorted(self.ends, numbers, right=True)
        flat = reshape(blocks, [blocks.dims[0] * blocks.dims[1], blocks.dims[2]])

        def place(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
            own = scalars[0].minimum(g.number(region, self.ends.dims[0] - 1, "i64")).cast("index")
            within = region.index(0).cast("i64") - _start(region, self.ends, own)
            return element(region, self.first, [own]) * g.number(region, self.height, "i64") + within

        places = g.generic([(group, ["d0"])], (g.empty(DType.I64, [self.rows]), ["d0"]), ["parallel"], place)

        def body(region: Body, scalars: Sequence[Scalar], _: Scalar) -> Scalar:
            there = scalars[1].compare("lt", g.number(region, self.ends.dims[0], "i64"))
            return region.select(there, element(region, flat, [scalars[0].cast("index"), region.index(1)]), 0)

        loops = ["d0", "d1"]
        into = (g.empty(blocks.dtype, [self.rows, blocks.dims[2]]), loops)
        return g.generic([(places, ["d0"]), (group, ["d0"])], into, ["parallel"] * 2, body)


def _start(region: Body, ends: Tensor, group: Scalar) -> Scalar:
    """The first row of a group."""
    before = element(region, ends, [(group - 1).maximum(0)])
    return region.select(group.compare("gt", 0), before, 0)
