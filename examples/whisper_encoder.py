"""Whisper's encoder for any batch: python examples/whisper_encoder.py [--size small]."""

from __future__ import annotations

from typing import Any

import torch
from comparison import arguments, compare
from torch.export import Dim
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

import tilewright as tw

BASE = {"d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048}
SMALL = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 128, "max_source_positions": 50}


def main() -> None:
    options = arguments("Whisper's encoder for any batch")
    config = WhisperConfig(**(SMALL if options.size == "small" else BASE))
    torch.manual_seed(0)
    model = WhisperEncoder(config).eval()

    def inputs(B: int) -> dict[str, Any]:  # noqa: N803 - the name of the dim
        return {"input_features": torch.randn(B, config.num_mel_bins, 2 * config.max_source_positions)}

    fn = tw.compile(model, kwargs=inputs(B=3), dynamic_shapes={"input_features": {0: Dim("B", min=1, max=8)}})
    print(fn)
    compare(fn, model, inputs, [{"B": 1}, {"B": 2}, {"B": 5}], lambda y: y["last_hidden_state"])
    if options.save:
        fn.save(options.save)


if __name__ == "__main__":
    main()
