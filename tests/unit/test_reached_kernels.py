"""Of a ragged program for GPUs, only kernels that a sequence can choose are launched."""

from __future__ import annotations

import itertools

import numpy as np

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.host.reached_kernels import Use, reached
from tilewright.compiler.reference import evaluate_ragged
from tilewright.runtime.program.dispatch import Leaf, Node, Split, leaves, select
from tilewright.runtime.shape import Expr

S, B = Expr.dim("S"), Expr.dim("B")


def use(largest: int, offset: Expr, **more: Expr) -> Use:
    return Use({"d0": S, "operand0.offset": offset, **more}, {"S": (0, largest), "begin": (0, float("inf"))})


def test_sides_that_no_sequence_takes_are_cut() -> None:
    aligned = Split("mod(operand0.offset, 8)", 0, Leaf(1), Leaf(2))
    tree = Split("d0", 32, Split("d0", 40, Leaf(0), Leaf(3)), Split("d0", 16, Leaf(4), Split("d0", 600, aligned, Leaf(5))))
    rows = Expr.dim("begin") * 1536 + 512
    assert reached(tree, [use(512, rows)]) == Split("d0", 32, Leaf(0), Leaf(1))
    assert reached(tree, [use(20, rows)]) == Leaf(0)
    odd = reached(tree, [use(512, rows), use(512, rows + 3)])  # two calls with one table
    assert {leaf.kernel for leaf in leaves(odd)} == {0, 1, 2}
    assert {leaf.kernel for leaf in leaves(reached(tree, [use(512, Expr.dim("begin") * 12)]))} == {0, 1, 2}
    assert {leaf.kernel for leaf in leaves(reached(tree, [use(512, Expr.dim("unknown"))]))} == {0, 1, 2}


def test_every_sequence_finds_the_kernel_that_it_had() -> None:
    rng = np.random.default_rng(0)
    number = itertools.count()

    def tree(depth: int) -> Node:
        if not depth:
            return Leaf(next(number))
        expr = str(rng.choice(["d0", "mod(d0, 4)", "floordiv(d0, 7)", "d0 - d1", "d1", "mod(operand0.offset, 8)"]))
        return Split(expr, int(rng.integers(0, 30)), tree(depth - 1), tree(depth - 1))

    for _ in range(60):
        root = tree(4)
        least, most = sorted(int(x) for x in rng.integers(0, 60, 2))
        step = int(rng.choice([1, 4, 8]))
        own = Use({"d0": S, "d1": B * 2, "operand0.offset": Expr.dim("begin") * step}, {"S": (least, most), "B": (1, 9),
                                                                                       "begin": (0, float("inf"))})
        cut = reached(root, [own])
        for s, b, begin in itertools.product(range(least, most + 1, 3), (1, 5, 9), (0, 3, 50)):
            dims = {"d0": s, "d1": 2 * b, "operand0.offset": begin * step}
            assert select(cut, dims) == select(root, dims)


def test_a_ragged_model_has_the_kernels_that_it_launches() -> None:
    """Attention in f16: of kernels for any length and layout, that of these, with the results of the reference."""
    g = ops.Graph()
    rows = [g.input(name, ["B", "S", 32], "f16") for name in "qkv"]
    b, s, _ = rows[0].dims
    q, k, v = (ops.transpose(ops.reshape(x, (b, s, 2, 16)), (0, 2, 1, 3)) for x in rows)
    g.output(ops.reshape(ops.transpose(ops.attention(q, k, v), (0, 2, 1, 3)), (b, s, 32)))
    fn = tw.compile(g, {"B": (0, 4), "S": tw.Ragged(0, 40, over="B")}, target="emulator:sm_90a")
    (call,) = (c for c in fn.program.calls if c.over)
    table = fn.program.tables[call.table]
    assert {leaf.kernel for leaf in leaves(table.root)} == set(range(len(table.kernels)))
    assert len(table.kernels) == 1, [k.config for k in table.kernels]
    assert not any("operand" in line for line in fn.program.dispatch_source.splitlines() if table.name in line)
    lengths, rng = (33, 0, 7, 40), np.random.default_rng(1)
    given = [rng.standard_normal((sum(lengths), 32)).astype(np.float16) for _ in "qkv"]
    (wanted,) = evaluate_ragged(fn.program.source, "B", given, {"S": lengths})
    np.testing.assert_allclose(fn(*given, S_lengths=list(lengths)).reshape(-1), wanted, atol=5e-3)
