"""The models that tuning policies are compared on: their distinct operators, how often each is called, and the shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilewright.compiler import ops

Make = Callable[[ops.Graph], ops.Tensor]


@dataclass(frozen=True)
class ModelOperator:
    """calls: of the model. make: adds the operator to a graph; constants are its inputs from the second on."""

    name: str
    calls: int
    dim: str
    sizes: tuple[int, ...]
    make: Make

    @property
    def range(self) -> tuple[int, int]:
        return min(self.sizes), max(self.sizes)


# (channels in, channels out, height and width, kernel, stride, calls)
RESNET_18 = (
    (3, 64, 224, 7, 2, 1), (64, 64, 56, 3, 1, 4), (64, 64, 56, 1, 1, 1), (64, 128, 56, 3, 2, 1), (64, 128, 56, 1, 2, 1),
    (128, 128, 28, 3, 1, 3), (128, 256, 28, 3, 2, 1), (128, 256, 28, 1, 2, 1), (256, 256, 14, 3, 1, 3),
    (256, 512, 14, 3, 2, 1), (256, 512, 14, 1, 2, 1), (512, 512, 7, 3, 1, 3),
)  # fmt: skip
SQUEEZENET = (
    (3, 64, 224, 3, 2, 1), (64, 16, 55, 1, 1, 1), (128, 16, 55, 1, 1, 1), (16, 64, 55, 1, 1, 2), (16, 64, 55, 3, 1, 2),
    (128, 32, 27, 1, 1, 1), (256, 32, 27, 1, 1, 1), (32, 128, 27, 1, 1, 2), (32, 128, 27, 3, 1, 2), (256, 48, 13, 1, 1, 1),
    (384, 48, 13, 1, 1, 1), (48, 192, 13, 1, 1, 2), (48, 192, 13, 3, 1, 2), (384, 64, 13, 1, 1, 1), (512, 64, 13, 1, 1, 1),
    (64, 256, 13, 1, 1, 2), (64, 256, 13, 3, 1, 2), (512, 1000, 13, 1, 1, 1),
)  # fmt: skip
BATCHES = (1, 2, 4, 8)
WIDTH, HEADS = 768, 12


def models() -> dict[str, tuple[ModelOperator, ...]]:
    """Name -> operators."""
    return {
        "resnet18": tuple(_convolutions(RESNET_18)),
        "squeezenet": tuple(_convolutions(SQUEEZENET)),
        "bert_base": tuple(_transformer(12, (8, 32, 128, 384), causal=False)),
        "gpt2_block": tuple(_transformer(1, (1, 16, 64, 256), causal=True)),
    }


def _convolutions(layers: tuple[tuple[int, ...], ...]) -> Iterator[ModelOperator]:
    for c, f, size, kernel, stride, calls in layers:

        def make(
            g: ops.Graph, c: int = c, f: int = f, size: int = size, kernel: int = kernel, stride: int = stride
        ) -> ops.Tensor:
            x, w = g.input("x", ["B", c, size, size]), g.input("w", [f, c, kernel, kernel])
            return ops.conv2d(x, w, stride=stride, padding=kernel // 2)

        yield ModelOperator(f"conv{kernel}x{kernel}_{c}x{size}_{f}_s{stride}", calls, "B", BATCHES, make)


def _transformer(layers: int, lengths: tuple[int, ...], causal: bool) -> Iterator[ModelOperator]:
    layers_of_one = ((3 * WIDTH, WIDTH, None), (WIDTH, WIDTH, None), (4 * WIDTH, WIDTH, "gelu"), (WIDTH, 4 * WIDTH, None))
    for n, k, activation in layers_of_one:

        def dense(g: ops.Graph, n: int = n, k: int = k, activation: str | None = activation) -> ops.Tensor:
            return ops.dense(g.input("x", ["S", k]), g.input("w", [k, n]), g.input("b", [n]), activation)

        yield ModelOperator(f"dense_{k}x{n}" + (f"_{activation}" if activation else ""), layers, "S", lengths, dense)

    def attention(g: ops.Graph) -> ops.Tensor:
        q, k, v = (g.input(name, [1, HEADS, "S", WIDTH // HEADS]) for name in "qkv")
        return ops.attention(q, k, v, causal=causal)

    def layernorm(g: ops.Graph) -> ops.Tensor:
        return ops.layernorm(g.input("x", ["S", WIDTH]), g.input("g", [WIDTH]), g.input("b", [WIDTH]))

    yield ModelOperator("attention_causal" if causal else "attention", layers, "S", lengths, attention)
    yield ModelOperator("layernorm", 2 * layers, "S", lengths, layernorm)
