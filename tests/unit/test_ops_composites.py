"""Attention, norms, einsum and dense: compiled, at several shapes, against NumPy and torch; and which kernels serve them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.ops_harness import Checks, Given
from tilewright.compiler import ops
from tilewright.compiler.frontends.ingest import ingest
from tilewright.passes.base import PassPipeline
from tilewright.passes.dispatch_creation.outline import workloads_of
from tilewright.passes.mlir import ir
from tilewright.passes.pipeline.graph_pipeline import graph_passes
from tilewright.passes.pipeline.pipelines import recover_passes
from tilewright.passes.spaces.workload import Kind
from tilewright.runtime.errors import DTypeError, OptionError, ShapeError

Array = np.ndarray[Any, Any]
DIMS = {"B": (1, 4), "S": (1, 64), "T": (1, 64)}
SHAPES = [{"B": 1, "S": 1, "T": 1}, {"B": 2, "S": 19, "T": 40}, {"B": 3, "S": 33, "T": 9}]


def attention(v: Mapping[str, Array], heads: str, mask: str | None, causal: str | bool, safe: bool = False) -> Array:
    torch = pytest.importorskip("torch")
    q, k, w = (torch.from_numpy(v[n].astype("f8")) for n in ("q", f"k{heads}", f"v{heads}"))
    k, w = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, w))
    scores = q @ k.mT / 16**0.5
    s, t = scores.shape[-2:]
    if mask is not None:
        m = torch.from_numpy(v[mask])
        scores = torch.where(m, scores, -np.inf) if m.dtype is torch.bool else scores + m
    if causal:
        offset = 0 if causal == "top-left" else t - s
        scores = torch.where(torch.arange(t) <= torch.arange(s)[:, None] + offset, scores, -np.inf)
    found = torch.softmax(scores, -1) @ w
    return np.asarray((found.nan_to_num(0) if safe else found).float())


def sparse(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Truth, with a first row of nothing."""
    x = random.random(shape) < 0.8
    x[..., :1, :] = False
    return x


def test_attention() -> None:
    checks = Checks({
        "q": Given(["B", 4, "S", 16]), **{f"{n}{h}": Given(["B", h, "T", 16]) for n in "kv" for h in (4, 2, 1)},
        "keys": Given(["B", 1, 1, "T"], "i1", lambda r, s: np.ones(s, bool)), "bias": Given(["B", 4, "S", "T"]),
        "rows": Given(["S", "T"], "i1", sparse), "plain": Given(["B", 1, "S", "T"], "f32"),
    }, DIMS)
    cases: list[tuple[int, str | None, bool | str, bool]] = [
        (4, None, False, False), (4, "keys", "top-left", False), (4, "plain", False, False), (2, "plain", "bottom-right", True),
        (2, "keys", False, False), (1, None, True, True), (1, "rows", False, True), (2, "bias", False, False),
        (4, "rows", True, True),
    ]
    for heads, mask, causal, safe in cases:
        given = checks["q"], checks[f"k{heads}"], checks[f"v{heads}"]
        got = ops.attention(*given, causal, mask=checks[mask] if mask else None, safe=safe)
        checks.add(f"{heads} {mask} {causal} {safe}", got,
                   lambda v, _, h=heads, m=mask, c=causal, s=safe: attention(v, str(h), m, c, s))
    checks.evaluate(SHAPES)


def test_attention_compiled() -> None:
    checks = Checks({"q": Given(["B", 4, "S", 16]), "k2": Given(["B", 2, "T", 16]), "v2": Given(["B", 2, "T", 16]),
                     "rows": Given(["S", "T"], "i1", sparse)}, DIMS)
    got = ops.attention(checks["q"], checks["k2"], checks["v2"], "bottom-right", mask=checks["rows"], safe=True)
    checks.add("grouped", got, lambda v, _: attention(v, "2", "rows", True, True))
    checks.run(SHAPES)


@pytest.mark.parametrize(("heads", "mask", "causal"), [
    (4, None, "top-left"), (4, ["B", 1, 1, "T"], False), (2, ["B", 1, "S", "T"], True), (1, None, True),
])
def test_attention_is_one_kernel(heads: int, mask: list[int | str] | None, causal: bool | str) -> None:
    g = ops.Graph()
    q, k, v = g.input("q", ["B", 4, "S", 16]), g.input("k", ["B", heads, "T", 16]), g.input("v", ["B", heads, "T", 16])
    g.output(ops.attention(q, k, v, causal, mask=None if mask is None else g.input("m", mask, "i1")))
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(ingest(g, DIMS).text)
        PassPipeline([*recover_passes(), *graph_passes()]).run(module)
        assert [w.kind for w in workloads_of(module).values()] == [Kind.ATTENTION]


def test_attention_of_more_axes_and_narrow_floats() -> None:
    torch = pytest.importorskip("torch")
    halves = {"q": Given(["B", 3, 4, "S", 8], "f16"), "k": Given(["B", 3, 2, "S", 8], "f16")}
    checks = Checks(halves | {"z": Given([2, "S", "T"])}, DIMS)

    def want(v: Mapping[str, Array], _: object) -> Array:
        q, k = (torch.from_numpy(v[n].astype("f4")) for n in "qk")
        k = k.repeat_interleave(2, 2)
        return np.asarray(torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True, scale=0.5).half())

    checks.add("five axes", ops.attention(checks["q"], checks["k"], checks["k"], "top-left", 0.5), want)

    def three(v: Mapping[str, Array], d: Mapping[str, int]) -> Array:
        z = v["z"].astype("f8")
        scores = z @ z.swapaxes(1, 2) / d["T"] ** 0.5
        power = np.exp(scores - scores.max(-1, keepdims=True))
        return (power / power.sum(-1, keepdims=True) @ z).astype("f4")

    checks.add("a head of any size", ops.attention(checks["z"], checks["z"], checks["z"]), three)
    checks.evaluate(SHAPES)


def test_norms_are_torch_s() -> None:
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    checks = Checks({
        "x": Given(["B", 6, "S", 5]), "h": Given(["B", "S", 6], "f16"), "g": Given([6]), "b": Given([6]), "w": Given([6, "S", 5]),
        "u": Given(["S", 5]), "hg": Given([6], "f16"), "m": Given([6]), "v": Given([6], "f32", lambda r, s: r.random(s) + 0.1),
    }, {n: DIMS[n] for n in "BS"})
    x, h, g, b, w, u, hg, m, v = (checks[n] for n in ("x", "h", "g", "b", "w", "u", "hg", "m", "v"))

    def add(name: str, got: ops.Tensor, want: Any) -> None:
        checks.add(name, got, lambda a, _: np.asarray(want({n: torch.from_numpy(t) for n, t in a.items()})))

    add("layernorm of axes", ops.layernorm(x, u, axes=(-2, -1)), lambda t: f.layer_norm(t["x"], t["u"].shape, t["u"]))
    add("layernorm plain", ops.layernorm(x, eps=0.1), lambda t: f.layer_norm(t["x"], [5], eps=0.1))
    add("layernorm f16", ops.layernorm(h, hg, hg),
        lambda t: f.layer_norm(t["h"].float(), [6], t["hg"].float(), t["hg"].float()).half())
    add("layernorm of channels", ops.layernorm(x, g, b, axes=1),
        lambda t: f.layer_norm(t["x"].movedim(1, -1), [6], t["g"], t["b"]).movedim(-1, 1))
    add("rmsnorm of axes", ops.rmsnorm(x, w, axes=(1, 2, 3)), lambda t: f.rms_norm(t["x"], t["w"].shape, t["w"], 1e-6))
    add("rmsnorm plain", ops.rmsnorm(x, eps=0.1), lambda t: f.rms_norm(t["x"], [5], eps=0.1))
    add("groupnorm", ops.groupnorm(x, 3, g, b), lambda t: f.group_norm(t["x"], 3, t["g"], t["b"]))
    add("groupnorm plain", ops.groupnorm(x, 2), lambda t: f.group_norm(t["x"], 2))
    add("instancenorm", ops.instancenorm(x, g, b, 0.1), lambda t: f.group_norm(t["x"], 6, t["g"], t["b"], 0.1))
    add("batchnorm", ops.batchnorm(x, (m, v), g, b), lambda t: f.batch_norm(t["x"], t["m"], t["v"], t["g"], t["b"]))
    add("batchnorm f16", ops.batchnorm(h, (m, v), axis=-1),
        lambda t: f.batch_norm(t["h"].float().movedim(-1, 1), t["m"], t["v"]).movedim(1, -1).half())
    add("log_softmax", ops.log_softmax(x * 20, 1), lambda t: (t["x"] * 20).log_softmax(1))
    checks.run(SHAPES)


def test_einsum_and_dense() -> None:
    checks = Checks({
        "a": Given(["B", "S", 6]), "b": Given(["B", 6, "T"]), "s": Given(["S", "S"]), "v": Given(["S"]),
        "i": Given(["S", 6], "i32"), "w": Given([7, 6]), "c": Given([7]), "o": Given([1, 6]),
    }, DIMS)
    equations = {"bsk,bkt->tsb": "ab", "...sk,...kt->...st": "ab", "ii->i": "s", "ii": "s",
                 "bsk->s": "a", "s,t->st": "vv", "bsk,s,nk->bn": "avw", "bsk,nk->bsn": "aw",
                 "bsk,ok->bso": "ao", "...k,ok->...k": "ao", "sk,sk->k": "ii", "st,tk->sk": "si"}  # fmt: skip
    for equation, names in equations.items():
        checks.add(equation, ops.einsum(equation, *(checks[n] for n in names)), lambda v, _, e=equation, n=names: np.einsum(
            e, *(v[x].astype("f8") for x in n)).astype("i4" if n == "ii" else "f4"))
    checks.add("dense, transposed", ops.dense(checks["a"], checks["w"], checks["c"], "relu", transposed=True),
               lambda v, _: np.maximum(v["a"] @ v["w"].T + v["c"], 0))
    row = ops.dense(ops.reshape(checks["o"], [6]), checks["w"], transposed=True)
    checks.add("dense of a row", row, lambda v, _: v["o"][0] @ v["w"].T)
    fn = checks.run(SHAPES)
    served = [c.family for c in fn.explain(B=2, S=33, T=40).calls]
    assert served.count("host_matmul") >= 5, served


@pytest.mark.parametrize(("build", "error", "words"), [
    (lambda g, x: ops.attention(x, x, x, causal="upper"), OptionError, "use True, False, 'top-left' or 'bottom-right'"),
    (lambda g, x: ops.attention(x, x, g.input("k", ["B", 2, "T", 8])), ShapeError, "do not fit"),
    (lambda g, x: ops.attention(x, *[g.input("k", ["B", 3, "S", 8])] * 2), ShapeError, "4 heads of q do not divide among 3"),
    (lambda g, x: ops.attention(x, x, x, mask=g.input("m", ["S", "S"], "i32")), DTypeError, "a mask of i32"),
    (lambda g, x: ops.attention(x, x, x, mask=g.input("m", ["B", "S"])), ShapeError, "does not broadcast to the scores"),
    (lambda g, x: ops.groupnorm(x, 3), ShapeError, "in 3 groups"),
    (lambda g, x: ops.layernorm(x, g.input("w", [4])), ShapeError, "axis 3 and a parameter are 8 and 4"),
    (lambda g, x: ops.einsum("ab,bc->ac", x), OptionError, "names 2 tensors, 1 came"),
    (lambda g, x: ops.einsum("abcde->a", x), ShapeError, "'abcde' for a tensor"),
    (lambda g, x: ops.einsum("abcd->z", x), OptionError, "letters of the tensors"),
    (lambda g, x: ops.einsum("a.b->a", x), OptionError, "cannot read 'a.b'"),
])
def test_mistakes_are_named(build: Any, error: type[Exception], words: str) -> None:
    g = ops.Graph()
    with pytest.raises(error, match=words):
        build(g, g.input("x", ["B", 4, "S", 8]))
