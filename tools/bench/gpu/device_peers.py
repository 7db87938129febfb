"""What the GPU benchmarks compare with: torch, torch.compile, cuDNN's attention, and Triton's matmul (triton_matmul.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.bench.gpu.cases import HEADS, Case

Call = Callable[..., Any]


PEERS = ("torch", "torch.compile", "triton", "cudnn")


def peers(torch: Any, case: Case, wanted: Sequence[str] = PEERS) -> dict[str, Call]:
    """System -> what it does with a case's arguments, of those wanted. torch.compile sees the shapes of a case in turn: the
    first it takes as they are, from the second on it makes the dim symbolic."""
    found: dict[str, Call] = {"torch": _eager(torch, case)}
    if "torch.compile" in wanted:
        torch._dynamo.reset()
        found["torch.compile"] = torch.compile(_eager(torch, case))
    if "triton" in wanted and case.kind == "matmul":
        from tools.bench.gpu.triton_matmul import matmul

        found["triton"] = functools.partial(matmul, precision=case.precision)
    if "cudnn" in wanted and case.kind == "attention":
        found["cudnn"] = functools.partial(_by_cudnn, torch)
    return {name: call for name, call in found.items() if name in wanted}


def _by_cudnn(torch: Any, q: Any, k: Any, v: Any) -> Any:
    """The attention that torch has from cuDNN, written for the tensor cores of its GPU; torch itself takes FlashAttention 2."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def reference(torch: Any, case: Case, given: Sequence[Any]) -> Any:
    """The result in f64, by torch."""
    return _eager(torch, case)(*(t.double() for t in given)) if case.kind != "attention" else _attention(torch, given)


def _attention(torch: Any, given: Sequence[Any]) -> Any:
    q, k, v = (t.double() for t in given)
    return torch.cat([torch.softmax(a @ b.transpose(-1, -2) * a.shape[-1] ** -0.5, -1) @ c for a, b, c in
                      zip(q.split(1), k.split(1), v.split(1), strict=True)])


def _eager(torch: Any, case: Case) -> Call:
    functional = torch.nn.functional
    kinds: Mapping[str, Call] = {
        "matmul": torch.matmul,
        "scores": lambda q, k: torch.matmul(q, k.transpose(1, 2)),
        "values": torch.matmul,
        "softmax": lambda x: torch.softmax(x, -1),
        "layernorm": lambda x, g, b: functional.layer_norm(x, g.shape, g, b, 1e-5),
        "attention": lambda q, k, v: functional.scaled_dot_product_attention(q, k, v),
        "bert_layer": lambda *a: _bert_layer(torch, case.precision == "f16", *a),
    }
    return kinds[case.kind]


def _bert_layer(torch: Any, half: bool, x: Any, *weights: Any) -> Any:
    """examples/bert_layer.mlir: post-norm encoder layer with an exact gelu."""
    w_qkv, b_qkv, w_out, b_out, w_up, b_up, w_down, b_down, g_1, n_1, g_2, n_2 = weights
    functional, width = torch.nn.functional, x.shape[-1]
    with torch.autocast("cuda", torch.float16, enabled=half and x.dtype == torch.float32):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (x @ w_qkv + b_qkv).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        y = functional.layer_norm(x + mixed @ w_out + b_out, (width,), g_1, n_1, 1e-5)
        z = functional.gelu(y @ w_up + b_up) @ w_down + b_down
        return functional.layer_norm(y + z, (width,), g_2, n_2, 1e-5)
