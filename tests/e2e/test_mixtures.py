"""Mixtures of experts of transformers, exported by torch.export and compared with PyTorch at several shapes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")

import tilewright as tw  # noqa: E402

VOCABULARY = 96
FORMS: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {"num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts_per_tok": 2},
}


class Logits(torch.nn.Module):  # type: ignore[name-defined, misc]
    def __init__(self, name: str, experts: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=64,
            vocab_size=VOCABULARY, **FORMS[name])
        self.inner = getattr(transformers, f"{name}ForCausalLM")(config)
        self.inner.config._experts_implementation = experts

    def forward(self, tokens: Any) -> Any:
        return self.inner(input_ids=tokens, use_cache=False).logits


@pytest.mark.parametrize(("name", "experts"), [("Mixtral", "grouped_mm"), ("Qwen2Moe", "batched_mm")])
def test_logits_at_several_shapes(name: str, experts: str) -> None:
    model = Logits(name, experts).eval()
    batch, length = torch.export.Dim("B", max=4), torch.export.Dim("S", max=64)
    with torch.no_grad():
        program = torch.export.export(model, (torch.ones(2, 7, dtype=torch.long),), dynamic_shapes=({0: batch, 1: length},),
                                      strict=False)
        compiled = tw.compile(program)
        for shape in ((1, 1), (1, 4), (3, 17), (4, 64)):
            tokens = torch.from_numpy(np.random.default_rng(sum(shape)).integers(0, VOCABULARY, shape))
            torch.testing.assert_close(compiled(tokens), model(tokens), rtol=1e-4, atol=1e-5)
