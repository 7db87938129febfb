"""One block of a Llama, grouped heads and rotary positions: python examples/llama_block.py [--size small]."""

from __future__ import annotations

from typing import Any

import torch
from comparison import arguments, compare
from torch.export import Dim
from transformers import LlamaConfig, LlamaModel

import tilewright as tw

SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}
REAL = {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192}


class Block(torch.nn.Module):
    """hidden states [B, S, width] -> the same after one causal block and its norm."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.model = LlamaModel(config)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model(inputs_embeds=hidden, use_cache=False).last_hidden_state


def main() -> None:
    options = arguments("A block of a Llama for any batch and length")
    config = LlamaConfig(**(SMALL if options.size == "small" else REAL), num_hidden_layers=1, vocab_size=16)
    torch.manual_seed(0)
    model = Block(config).eval()

    def inputs(B: int, S: int) -> dict[str, Any]:  # noqa: N803 - the names of the dims
        return {"hidden": torch.randn(B, S, config.hidden_size)}

    sizes = {0: Dim("B", min=1, max=4), 1: Dim("S", min=1, max=512)}
    fn = tw.compile(model, kwargs=inputs(B=3, S=17), dynamic_shapes={"hidden": sizes})
    print(fn)
    compare(fn, model, inputs, [{"B": 1, "S": 1}, {"B": 2, "S": 33}, {"B": 1, "S": 200}], lambda y: y)
    if options.save:
        fn.save(options.save)


if __name__ == "__main__":
    main()
