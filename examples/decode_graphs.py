"""A decode loop on a GPU with torch: one compiled step for every length of the key-value cache, launched as one CUDA graph that
is updated to each step, with no capture and no buckets: python examples/decode_graphs.py [--tokens 64]."""

from __future__ import annotations

import argparse
import time

import torch
from torch.export import Dim

import tilewright as tw

WIDTH, HEADS, LAYERS, VOCABULARY, LONGEST = 768, 12, 4, 50257, 1024
Cache = list[torch.Tensor]


class Layer(torch.nn.Module):
    """A decoder layer for one token: x [1, 1, WIDTH], keys and values of P tokens -> x, those of P + 1."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
                ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = self.qkv(self.norm1(x)).view(1, 1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, keys, values)
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, WIDTH))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x)))), keys, values


class Step(torch.nn.Module):
    """token [1, 1], keys and values of each layer -> logits [1, VOCABULARY] and the caches, one token longer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, token: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
        x, made = self.embedding(token), []
        for layer, keys, values in zip(self.layers, cache[::2], cache[1::2], strict=True):
            x, *longer = layer(x, keys, values)
            made += longer
        return x[:, 0] @ self.embedding.weight.T, made


def empty_cache(tokens: int, device: str) -> Cache:
    return [torch.randn(1, HEADS, tokens, WIDTH // HEADS, device=device) for _ in range(2 * LAYERS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=64)
    tokens = parser.parse_args().tokens
    torch.manual_seed(0)
    step, past = Step().eval(), Dim("P", min=2, max=LONGEST)
    fn = tw.compile(step, args=(torch.zeros(1, 1, dtype=torch.int64), empty_cache(7, "cpu")),
                    dynamic_shapes={"token": None, "cache": [{2: past}] * (2 * LAYERS)}, target="cuda",
                    options={"graphs": "on", "graph_memory": "64M"})
    token, cache = torch.zeros(1, 1, dtype=torch.int64, device="cuda"), empty_cache(2, "cuda")
    begin = time.perf_counter()
    with torch.no_grad():
        for _ in range(tokens):
            logits, cache = fn(token, cache)
            token = logits.argmax(-1, keepdim=True)
    torch.cuda.synchronize()
    print(f"{tokens} tokens in {time.perf_counter() - begin:.3f} s")
    print(fn.graphs())


if __name__ == "__main__":
    main()
