"""A decode loop with torch, on a GPU where there is one: one compiled step for every length of the key-value cache, launched as
one CUDA graph that is updated to each step, with no capture and no buckets: python examples/decode_graphs.py [--size small]."""

from __future__ import annotations

import time

import torch
from comparison import LARGEST_ERROR, arguments, error
from torch.export import Dim

import tilewright as tw

Cache = list[torch.Tensor]


class Layer(torch.nn.Module):
    """A decoder layer for one token: x [1, 1, width], keys and values of P tokens -> x, those of P + 1."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
                ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = self.qkv(self.norm1(x)).view(1, 1, 3, self.heads, self.width // self.heads).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, keys, values)
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, self.width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x)))), keys, values


class Step(torch.nn.Module):
    """token [1, 1], keys and values of each layer -> logits [1, vocabulary] and the caches, one token longer."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.layers = torch.nn.ModuleList(Layer(width, heads) for _ in range(layers))

    def forward(self, token: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
        x, made = self.embedding(token), []
        for layer, keys, values in zip(self.layers, cache[::2], cache[1::2], strict=True):
            x, *longer = layer(x, keys, values)
            made += longer
        return x[:, 0] @ self.embedding.weight.T, made

    def empty_cache(self, tokens: int) -> Cache:
        """Keys and values of a prompt of so many tokens, here random ones."""
        layer = self.layers[0]
        return [torch.randn(1, layer.heads, tokens, layer.width // layer.heads) for _ in range(2 * len(self.layers))]


def main() -> None:
    options = arguments("a decode loop as one CUDA graph")
    torch.manual_seed(0)
    small = options.size == "small"
    step = (Step(100, 64, 4, 2) if small else Step(50257, 768, 12, 12)).eval()
    tokens, on_gpu, past = 8 if small else 256, torch.cuda.is_available(), Dim("P", min=2, max=1024)
    device, asked = ("cuda", {"graphs": "on", "graph_memory": "64M"}) if on_gpu else ("cpu", {})
    fn = tw.compile(step, args=(torch.zeros(1, 1, dtype=torch.int64), step.empty_cache(7)),
                    dynamic_shapes={"token": None, "cache": [{2: past}] * (2 * len(step.layers))},
                    target="cuda" if on_gpu else "host", options=asked)
    step.to(device)
    token, start = torch.zeros(1, 1, dtype=torch.int64, device=device), [c.to(device) for c in step.empty_cache(3)]
    cache, eager, seen = start, start, token
    begin = time.perf_counter()
    for _ in range(tokens):
        logits, cache = fn(seen, cache)
        seen = logits.argmax(-1, keepdim=True)
    found = logits.cpu()
    print(f"  {tokens} tokens in {time.perf_counter() - begin:.3f} s")
    with torch.no_grad():
        for _ in range(tokens):
            wanted, eager = step(token, eager)
            token = wanted.argmax(-1, keepdim=True)
    far = error(found, wanted.cpu())
    print(f"  the last token's logits: error {far:.1e}")
    if not far <= LARGEST_ERROR:
        raise SystemExit(f"too far from PyTorch: {far:.1e}")
    print(fn.graphs() if on_gpu else "  no GPU is here: it ran on the CPU, where nothing is captured")
    if options.save:
        fn.save(options.save)


if __name__ == "__main__":
    main()
