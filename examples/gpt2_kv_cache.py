"""GPT-2 that writes text token by token, its key-value cache a pair of tensors per layer that grow: a prompt of any length is one
compiled function, every further token another, for any length of the cache: python examples/gpt2_kv_cache.py [--size small]."""

from __future__ import annotations

from typing import Any

import torch
from comparison import arguments, error
from torch.export import Dim
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.cache_utils import DynamicCache

import tilewright as tw

SMALL = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1000, "bos_token_id": 0, "eos_token_id": 0}
Cache = tuple[tuple[torch.Tensor, torch.Tensor], ...]


def flat(cache: DynamicCache) -> Cache:
    """The keys and values [B, heads, P, width] of every layer."""
    return tuple((layer.keys, layer.values) for layer in cache.layers)


class Prompt(torch.nn.Module):
    """input_ids [B, S] -> logits of the next token [B, vocabulary], cache."""

    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, Cache]:
        made = self.model(input_ids=input_ids, use_cache=True, logits_to_keep=1)
        return made.logits[:, -1], flat(made.past_key_values)


class Step(torch.nn.Module):
    """token [B, 1], its position [1, 1], cache of P tokens -> logits of the next token, cache of P + 1 tokens."""

    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: torch.Tensor, position: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
        past = DynamicCache()
        for number, (keys, values) in enumerate(cache):
            past.update(keys, values, number)
        made = self.model(input_ids=token, position_ids=position, past_key_values=past, use_cache=True)
        return made.logits[:, -1], flat(made.past_key_values)


def main() -> None:
    options = arguments("GPT-2 with a key-value cache")
    config = GPT2Config(**SMALL) if options.size == "small" else GPT2Config()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).eval()
    batch, length, past = Dim("B", min=1, max=4), Dim("S", min=1, max=64), Dim("P", min=1, max=256)
    prompt = tw.compile(Prompt(model).eval(), args=(torch.randint(config.vocab_size, (2, 7)),),
                        dynamic_shapes={"input_ids": {0: batch, 1: length}})
    with torch.no_grad():
        _, cache = Prompt(model)(torch.randint(config.vocab_size, (2, 7)))
    grows = tuple(({0: batch, 2: past}, {0: batch, 2: past}) for _ in cache)
    step = tw.compile(Step(model).eval(), args=(torch.zeros(2, 1, dtype=torch.int64), torch.tensor([[7]]), cache),
                      dynamic_shapes={"token": {0: batch}, "position": None, "cache": grows})
    print(prompt, step, sep="\n")
    ids = torch.randint(config.vocab_size, (3, 5))
    made = write(prompt, step, ids, 8)
    with torch.no_grad():
        wanted = [model(ids[:, : 5 + n]).logits[:, -1] for n in (0,)]
        for n in range(1, 8):
            wanted.append(model(torch.cat([ids, made[1][:, :n]], 1)).logits[:, -1])
    far = max(error(a, b) for a, b in zip(made[0], wanted, strict=True))
    print(f"  8 tokens for 3 prompts: {made[1].tolist()}, error {far:.1e}")
    if not far <= 2e-5:
        raise SystemExit(f"too far from PyTorch: {far:.1e}")
    if options.save:
        step.save(options.save)


def write(prompt: Any, step: Any, ids: torch.Tensor, count: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The most likely tokens after `ids`, one after the other: logits of each step, tokens [B, count]."""
    logits, cache = prompt(ids)
    seen, tokens = [logits], [logits.argmax(-1, keepdim=True)]
    for number in range(ids.shape[1], ids.shape[1] + count - 1):
        logits, cache = step(tokens[-1], torch.tensor([[number]]), cache)
        seen.append(logits)
        tokens.append(logits.argmax(-1, keepdim=True))
    return seen, torch.cat(tokens, 1)


if __name__ == "__main__":
    main()
