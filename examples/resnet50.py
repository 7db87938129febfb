"""ResNet-50 for any batch: python examples/resnet50.py [--size small]."""

from __future__ import annotations

from typing import Any

import torch
from comparison import arguments, compare
from torch.export import Dim
from transformers import ResNetConfig, ResNetForImageClassification

import tilewright as tw

SMALL = {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1], "num_labels": 10}


def main() -> None:
    options = arguments("ResNet-50 for any batch")
    config = ResNetConfig(**SMALL) if options.size == "small" else ResNetConfig()
    pixels = 64 if options.size == "small" else 224
    torch.manual_seed(0)
    model = ResNetForImageClassification(config).eval()

    def inputs(B: int) -> dict[str, Any]:  # noqa: N803 - the name of the dim
        return {"pixel_values": torch.randn(B, 3, pixels, pixels)}

    fn = tw.compile(model, kwargs=inputs(B=3), dynamic_shapes={"pixel_values": {0: Dim("B", min=1, max=8)}})
    print(fn)
    compare(fn, model, inputs, [{"B": 1}, {"B": 2}, {"B": 5}], lambda y: y["logits"])
    if options.save:
        fn.save(options.save)


if __name__ == "__main__":
    main()
