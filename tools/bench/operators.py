"""The operator suite: DietCode's BERT table at batch 1, rows, attention, convolutions, large and bf16 products; AVX2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tools.bench.operator_spec import Input, Operator

HEADS, HEAD, HIDDEN = 12, 64, 768
LENGTHS = (1, 2, 5, 8, 16, 24, 43, 62, 81, 100, 119, 128)
DENSE = ((768, 768), (768, 2304), (768, 3072), (3072, 768))
LINEAR = ((768, 768), (1024, 1024), (2048, 2048), (768, 3072), (3072, 768))
LARGE = ((8192, 768), (4096, 4096))
# (channels in, channels out, height and width in, kernel, stride): the distinct layers of ResNet-50's stages.
CONVOLUTIONS = (
    (64, 64, 56, 3, 1), (128, 128, 28, 3, 1), (256, 256, 14, 3, 1), (512, 512, 7, 3, 1), (128, 128, 56, 3, 2),
    (64, 256, 56, 1, 1), (256, 64, 56, 1, 1), (128, 512, 28, 1, 1), (512, 128, 28, 1, 1), (256, 1024, 14, 1, 1),
    (1024, 256, 14, 1, 1), (512, 2048, 7, 1, 1), (2048, 512, 7, 1, 1),
)  # fmt: skip


def operators() -> Iterator[Operator]:
    """Every operator of the suite, constant weights first."""
    for k, n in DENSE:
        yield dense(k, n)
    for k, n in DENSE:
        yield dense(k, n, constant=False)
    for constant in (True, False):
        for k, n in LINEAR:
            yield linear(k, n, constant)
    yield dense_codes(768, 768)
    yield dense_pool(768, 768)
    yield bmm_nt()
    yield bmm_nn()
    yield softmax()
    yield norm("layernorm")
    yield norm("rmsnorm")
    yield attention(causal=False)
    yield attention(causal=True)
    for layer in CONVOLUTIONS:
        yield convolution(*layer, layout="nchw")
        yield convolution(*layer, layout="nhwc")
    for k, n in LARGE:
        yield dense(k, n, rows=(512, 2048))
    for k, n in ((768, 768), (768, 2304), (3072, 768)):
        yield dense(k, n, dtype="bf16")
        yield dense(k, n, dtype="bf16", constant=False)
    for operator in (softmax(), norm("layernorm"), attention(causal=False)):
        yield replace(operator, name=f"{operator.name}_bf16", dtype="bf16")
    for constant in (True, False):
        for k, n in ((768, 768), (768, 3072)):
            yield avx2(dense(k, n, constant))
        yield avx2(linear(768, 768, constant))
        yield avx2(dense(1024, 1024, constant, rows=(1024,)))


def lengths(most: int = 128) -> tuple[dict[str, int], ...]:
    return tuple({"T": t} for t in LENGTHS if t <= most)


def all_lengths() -> tuple[dict[str, int], ...]:
    return tuple({"T": t} for t in range(1, 129))


def dense(k: int, n: int, constant: bool = True, dtype: str = "f32", rows: tuple[int, ...] = ()) -> Operator:
    """Y[T, n] = X[T, k] W[k, n], the weight known at compile time or passed with every call."""
    suffix = ("" if dtype == "f32" else f"_{dtype}") + ("" if constant else "_argument")
    return Operator(
        f"{'matmul' if rows else 'dense'}_{k}x{n}{suffix}", "dense", "operators",
        {"x": Input(("T", k)), "w": Input((k, n), constant)}, ("T", n),
        {"T": (1, max(rows, default=128))}, tuple({"T": t} for t in rows) or lengths(), () if rows else all_lengths(),
        dtype, flops=(2, "T", k, n),
    )  # fmt: skip


def linear(k: int, n: int, constant: bool = True) -> Operator:
    """Y[T, n] = X[T, k] W[n, k]^T, as torch.nn.Linear keeps its weight."""
    kept = dense(k, n, constant)
    name = f"dense_{k}x{n}_nk{'' if constant else '_argument'}"
    return replace(kept, name=name, kind="dense_nk", inputs={**kept.inputs, "w": Input((n, k), constant)})


def dense_codes(k: int, n: int) -> Operator:
    """Y[T, n] = X[T, k] W[n, k]^T, W in codes of 4 bits with a scale for each 32 of k."""
    kept = dense(k, n)
    codes, scale = Input((n, k // 2), True, dtype="ui8", below="256"), Input((n, k // 32), True, 0.1)
    return replace(kept, name=f"codes_u4g32_{k}x{n}", kind="dense_codes", inputs={"x": kept.inputs["x"], "w": codes, "s": scale})


def dense_pool(k: int, n: int) -> Operator:
    """Y[T, n] = X[T, k] W[n, k]^T, eight values of W along k by an index into a pool of 64 vectors."""
    kept = dense(k, n)
    index, pool = Input((n, k // 8), True, dtype="ui8", below="64"), Input((64, 8), True)
    return replace(kept, name=f"pools64_{k}x{n}", kind="dense_pool", inputs={"x": kept.inputs["x"], "w": index, "p": pool})


def avx2(operator: Operator) -> Operator:
    """The same without AVX-512."""
    return replace(operator, name=f"{operator.name}_avx2", suite="avx2", level="x86-64-v3")


def bmm_nt() -> Operator:
    """S[h, T, T] = Q[h, T, 64] K[h, T, 64]^T."""
    operand = Input((HEADS, "T", HEAD))
    return Operator(
        "bmm_nt", "bmm_nt", "operators", {"q": operand, "k": operand}, (HEADS, "T", "T"),
        {"T": (1, 128)}, lengths(), all_lengths(), flops=(2, HEADS, "T", "T", HEAD),
    )  # fmt: skip


def bmm_nn() -> Operator:
    """O[h, T, 64] = P[h, T, T] V[h, T, 64]."""
    return Operator(
        "bmm_nn", "bmm_nn", "operators", {"p": Input((HEADS, "T", "T")), "v": Input((HEADS, "T", HEAD))},
        (HEADS, "T", HEAD), {"T": (1, 128)}, lengths(), all_lengths(), flops=(2, HEADS, "T", "T", HEAD),
    )  # fmt: skip


def softmax() -> Operator:
    """Softmax of the last axis of [12, T, T]."""
    dims = (HEADS, "T", "T")
    return Operator("softmax", "softmax", "operators", {"x": Input(dims)}, dims, {"T": (1, 128)}, lengths(), all_lengths())


def norm(kind: str) -> Operator:
    """Layernorm (gain and bias, eps 1e-5) or RMS norm (gain, eps 1e-6) of the last axis of [T, 768]."""
    gains = {"g": Input((HIDDEN,), True), "b": Input((HIDDEN,), True)}
    if kind == "rmsnorm":
        del gains["b"]
    return Operator(
        kind, kind, "operators", {"x": Input(("T", HIDDEN)), **gains}, ("T", HIDDEN), {"T": (1, 128)}, lengths(), all_lengths()
    )


def attention(causal: bool) -> Operator:
    """softmax(q k^T / 8) v over [1, 12, T, 64]."""
    dims = (1, HEADS, "T", HEAD)
    longer = ({"T": 384}, {"T": 512})
    return Operator(
        "attention_causal" if causal else "attention", "attention", "operators",
        {n: Input(dims) for n in "qkv"}, dims, {"T": (1, 512)}, (*lengths(), *longer), (*all_lengths(), *longer),
        params={"causal": int(causal)}, flops=(4, HEADS, "T", "T", HEAD),
    )  # fmt: skip


def convolution(c: int, f: int, size: int, kernel: int, stride: int, layout: str) -> Operator:
    """2-D convolution, padding kernel // 2, no bias; the weight is known at compile time."""
    out = size // stride
    nchw = layout == "nchw"
    weight: tuple[int, ...] = (f, c, kernel, kernel) if nchw else (kernel, kernel, c, f)
    strided = "" if stride == 1 else f"_s{stride}"
    return Operator(
        f"conv{kernel}x{kernel}{strided}_{c}x{size}_{f}_{layout}", "conv", "operators",
        {"x": Input(("B", c, size, size) if nchw else ("B", size, size, c)), "w": Input(weight, True)},
        ("B", f, out, out) if nchw else ("B", out, out, f), {"B": (1, 8)}, ({"B": 1}, {"B": 4}),
        params={"stride": stride, "padding": kernel // 2, "layout": layout}, flops=(2, "B", f, out, out, c, kernel, kernel),
    )  # fmt: skip
