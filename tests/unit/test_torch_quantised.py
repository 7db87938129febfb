"""PyTorch's quantised layers as torch.export gives them, compiled for the host: bytes are multiplied."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

pytestmark = pytest.mark.usefixtures("built_here")

torch = pytest.importorskip("torch")
from torch.ao.quantization.fx import _decomposed  # noqa: E402, F401  (defines quantized_decomposed)

Q = torch.ops.quantized_decomposed


class ByTensor(torch.nn.Module):
    """A linear layer between quantised activations, its weight in codes for each channel."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("w", torch.randint(-128, 128, (33, 40), dtype=torch.int8, generator=generator))
        self.register_buffer("s", torch.rand(33, generator=generator) * 0.01 + 0.001)
        self.register_buffer("z", torch.zeros(33, dtype=torch.int64))
        self.register_buffer("b", torch.randn(33, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = Q.quantize_per_tensor(x, 0.02, 119, 0, 255, torch.uint8)
        x = Q.dequantize_per_tensor(codes, 0.02, 119, 0, 255, torch.uint8)
        w = Q.dequantize_per_channel(self.w, self.s, self.z, 0, -128, 127, torch.int8)
        y = torch.relu(torch.nn.functional.linear(x, w, self.b))
        return Q.dequantize_per_tensor(Q.quantize_per_tensor(y, 0.1, 3, 0, 255, torch.uint8), 0.1, 3, 0, 255, torch.uint8)


class ByRow(torch.nn.Module):
    """A scale for each row, found from its values."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.register_buffer("w", torch.randint(-128, 128, (40, 24), dtype=torch.int8, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
        codes = (x / scale).round().clamp(-128, 127).to(torch.int8)
        return torch._int_mm(codes, self.w).to(torch.float32) * scale


@pytest.mark.parametrize("layer,step", [(ByTensor, 0.1), (ByRow, 0.0)])
def test_quantised_layers(layer: type[torch.nn.Module], step: float) -> None:
    """step: between results that are codes again, where a sum of f32 may round to either of two."""
    model = layer()
    exported = torch.export.export(model, (torch.randn(20, 40),), dynamic_shapes=({0: torch.export.Dim("M", min=18, max=64)},))
    fn = tw.compile(exported)
    assert "pairs" in str(fn.explain(x_0=20)) or "quads" in str(fn.explain(x_0=20)) or not step
    x = torch.randn(31, 40, generator=torch.Generator().manual_seed(2)) * 2
    want = model(x).numpy()
    difference, rounding = np.abs(np.asarray(fn(x)) - want), 1e-6 * np.abs(want).max()
    assert difference.max() <= step * 1.001 + rounding
    assert (difference > rounding).mean() < 0.01
