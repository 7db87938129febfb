"""Modules of the models suite that transformers does not have, and its models with one tensor as the result. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class _One(nn.Module):  # type: ignore[misc]
    """A model of one input, by position."""

    def __init__(self, model: nn.Module, pick: str, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.pick, self.given = model, pick, dict(given)

    def forward(self, x: Tensor) -> Any:
        return getattr(self.model(x, **self.given), self.pick)


class _Two(_One):
    """A model of two inputs; the second is a mask."""

    def forward(self, x: Tensor, mask: Tensor) -> Any:  # type: ignore[override]
        return getattr(self.model(x, attention_mask=mask, **self.given), self.pick)


def picked(model: nn.Module, pick: str, given: Mapping[str, Any], mask: bool = False) -> nn.Module:
    """The model, with the field `pick` of what it gives as its result."""
    return (_Two if mask else _One)(model, pick, given)


def settled(model: nn.Module, size: int) -> nn.Module:
    """A model of [batch, 3, size, size] whose batch norms have the statistics of eight such images of normal values."""
    norms = [m for m in model.eval().modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    with torch.no_grad():
        model(torch.randn(8, 3, size, size))
    return model.eval()


class _Mix(nn.Module):  # type: ignore[misc]
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.along = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.second(x))


class MlpMixer(nn.Module):  # type: ignore[misc]
    """Two layers over 64 patches of an image of 64 x 64."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 128, 8, 8)
        self.layers = nn.Sequential(_Mix(64, 128), _Mix(64, 128))
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.layers(x)).mean(1))


class _Residual(nn.Module):  # type: ignore[misc]
    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(8, given), nn.GroupNorm(8, made)
        self.conv_1, self.conv_2 = nn.Conv2d(given, made, 3, padding=1), nn.Conv2d(made, made, 3, padding=1)
        self.skip = nn.Conv2d(given, made, 1) if given != made else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv_1(functional.silu(self.norm_1(x)))
        return self.conv_2(functional.silu(self.norm_2(h))) + self.skip(x)


class UNet(nn.Module):  # type: ignore[misc]
    """Two levels down and up, group norm, attention in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1)
        self.down_1, self.pool_1 = _Residual(32, 32), nn.Conv2d(32, 64, 3, 2, 1)
        self.down_2, self.pool_2 = _Residual(64, 64), nn.Conv2d(64, 64, 3, 2, 1)
        self.middle, self.norm = _Residual(64, 64), nn.GroupNorm(8, 64)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.up_2, self.up_1 = _Residual(128, 64), _Residual(96, 32)

    def forward(self, x: Tensor) -> Tensor:
        high = self.down_1(self.first(x))
        mid = self.down_2(self.pool_1(high))
        low = self.middle(self.pool_2(mid))
        batch, channels, rows, columns = low.shape
        t = self.norm(low).flatten(2).transpose(1, 2)
        mixed = self.attention(t, t, t, need_weights=False)[0]
        low = low + mixed.transpose(1, 2).reshape(batch, channels, rows, columns)
        up = self.up_2(torch.cat([functional.interpolate(low, scale_factor=2.0, mode="nearest"), mid], 1))
        return self.last(self.up_1(torch.cat([functional.interpolate(up, scale_factor=2.0, mode="nearest"), high], 1)))


class EncoderLayer(nn.TransformerEncoderLayer):  # type: ignore[misc]
    """torch.nn's own, 256 wide."""

    def __init__(self) -> None:
        super().__init__(256, 4, 512, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)
