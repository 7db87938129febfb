"""Models of the benchmark of CUDA graphs: layers of GPT-2 small over S tokens in f16, and a loop whose end depends on data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FEW = 16
"""Largest number of turns of a loop whose turns are all launched, going by a byte; one that knows none is a WHILE node."""
LOOPS = {"predicated": (FEW, "on"), "conditional": (None, "on"), "launches": (None, "off")}


@dataclass(frozen=True)
class Form:
    """Sizes: of the layers, and of the square products of the loop."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    longest: int = 1024
    rows: int = 64
    square: int = 512


def layers(form: Form) -> Any:
    """x [1, S, width], then each layer's weights -> x: norms first, causal attention, GELU."""
    import tilewright as tw

    ops, g = tw.ops, tw.ops.Graph()
    x = g.input("x", [1, "S", form.width], "f16")
    for n in range(form.layers):
        weights = ops.EncoderWeights.inputs(g, form.width, 4 * form.width, f"h{n}_", "f16")
        x = ops.transformer_encoder_layer(x, weights, form.heads, causal=True, norm_first=True)
    g.output(x)
    return g


def loop(form: Form, limit: int | None) -> Any:
    """x [rows, square], w [square, square], left: as long as left > 0, and for at most `limit` turns where there is one:
    x = tanh(x @ w), left = left - 1. The turns are not known before a kernel has run."""
    import tilewright as tw

    ops, g = tw.ops, tw.ops.Graph()
    x = g.input("x", [form.rows, form.square], "f16")
    w, left = g.input("w", [form.square, form.square], "f16"), g.input("left", [], "f32")

    def test(x: Any, left: Any) -> Any:
        return ops.compare(left, 0.0, "gt")

    def step(x: Any, left: Any) -> tuple[Any, Any]:
        return ops.tanh(ops.matmul(x, w)), left - 1.0

    if limit is None:
        found, _ = ops.while_loop(test, step, x, left)
    else:
        found, _ = ops.fori_loop(0, limit, lambda _, *state: step(*state), x, left, test=test)
    g.output(found)
    return g


def file_of(name: str) -> str:
    return f"graphs_{name}.tw"


def build(folder: Path, target: str, form: Form) -> list[Path]:
    """Compile and save: the layers through a graph and by launches, and the loops. Needs the compiler, not a GPU."""
    import tilewright as tw

    made: dict[str, tuple[Any, dict[str, Any], str]] = {}
    for graphs in ("on", "off"):
        made[f"layers_{graphs}"] = (layers(form), {"S": (1, form.longest)}, graphs)
    for name, (limit, graphs) in LOOPS.items():
        made[f"loop_{name}"] = (loop(form, limit), {}, graphs)
    for name, (model, dims, graphs) in made.items():
        tw.compile(model, dims, target=target, options={"graphs": graphs}).save(folder / file_of(name))
    return [folder / file_of(name) for name in made]


def shapes(form: Form) -> list[tuple[int, ...]]:
    """Of the weights of all layers, in order."""
    e, f = form.width, 4 * form.width
    return [(e, 3 * e), (3 * e,), (e, e), (e,), (e, f), (f,), (f, e), (e,), *[(e,)] * 4] * form.layers


def weights_of(torch: Any, form: Form, device: str) -> list[Any]:
    """Seeded: matrices that keep the size of rows, biases near 0, scales near 1."""
    torch.manual_seed(0)
    found = []
    for number, shape in enumerate(shapes(form)):
        values = torch.randn(*shape, device=device) * (shape[0] ** -0.5 if len(shape) == 2 else 0.1)
        found.append((values + 1.0 if number % 12 in (8, 10) else values).half())
    return found


def eager(torch: Any, form: Form, x: Any, weights: Sequence[Any]) -> Any:
    """The layers in torch, in the type of x."""
    functional = torch.nn.functional
    for n in range(form.layers):
        w_qkv, b_qkv, w_out, b_out, w_up, b_up, w_down, b_down, g_1, n_1, g_2, n_2 = weights[12 * n : 12 * n + 12]
        inner = functional.layer_norm(x, (form.width,), g_1, n_1)
        q, k, v = torch.addmm(b_qkv, inner[0], w_qkv).unflatten(-1, (3, form.heads, -1)).permute(1, 2, 0, 3).unsqueeze(1)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + torch.addmm(b_out, mixed.transpose(1, 2).flatten(2)[0], w_out)
        inner = functional.layer_norm(x, (form.width,), g_2, n_2)
        x = x + torch.addmm(b_down, functional.gelu(torch.addmm(b_up, inner[0], w_up)), w_down)
    return x
