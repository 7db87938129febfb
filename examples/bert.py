"""BERT for any batch and sequence length, with an attention mask: python examples/bert.py [--size small]."""

from __future__ import annotations

from typing import Any

import torch
from comparison import arguments, compare
from torch.export import Dim
from transformers import BertConfig, BertModel

import tilewright as tw

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}


class Encoder(torch.nn.Module):
    """input_ids, attention_mask [B, S] -> hidden states [B, S, width]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def main() -> None:
    options = arguments("BERT for any batch and sequence length")
    config = BertConfig(**SMALL) if options.size == "small" else BertConfig()
    torch.manual_seed(0)
    model = Encoder(config).eval()

    def inputs(B: int, S: int) -> dict[str, Any]:  # noqa: N803 - the names of the dims
        lengths = torch.randint(1, S + 1, (B, 1))
        return {"input_ids": torch.randint(config.vocab_size, (B, S)), "attention_mask": (torch.arange(S) < lengths).long()}

    sizes = {0: Dim("B", min=1, max=8), 1: Dim("S", min=1, max=128)}
    fn = tw.compile(model, kwargs=inputs(B=3, S=17), dynamic_shapes={"input_ids": sizes, "attention_mask": sizes})
    print(fn)
    compare(fn, model, inputs, [{"B": 1, "S": 1}, {"B": 2, "S": 33}, {"B": 8, "S": 128}], lambda y: y)
    if options.save:
        fn.save(options.save)


if __name__ == "__main__":
    main()
