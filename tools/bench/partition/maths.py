"""One text of a workload for PyTorch and for JAX: the operations that it uses, by the same names in both."""

from __future__ import annotations

from typing import Any, Protocol

Array = Any


class Maths(Protocol):
    """axis: the one that is reduced, or None for all; keep: does it stay, with an extent of 1?"""

    def sum(self, x: Array, axis: int | None = None, keep: bool = False) -> Array: ...
    def mean(self, x: Array, axis: int | None = None, keep: bool = False) -> Array: ...
    def largest(self, x: Array, axis: int) -> Array: ...
    def exp(self, x: Array) -> Array: ...
    def log(self, x: Array) -> Array: ...
    def erf(self, x: Array) -> Array: ...
    def sqrt(self, x: Array) -> Array: ...
    def sigmoid(self, x: Array) -> Array: ...
    def where(self, condition: Array, x: Array, y: Array) -> Array: ...
    def minimum(self, x: Array, y: Array) -> Array: ...
    def concatenated(self, parts: list[Array], axis: int) -> Array: ...
    def counted(self, count: int, like: Array) -> Array: ...
    def picked(self, x: Array, labels: Array) -> Array: ...


class TorchMaths:
    """PyTorch's, or those of its export."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.exp, self.log, self.erf, self.sqrt, self.sigmoid = torch.exp, torch.log, torch.erf, torch.sqrt, torch.sigmoid
        self.where = torch.where

    def sum(self, x: Array, axis: int | None = None, keep: bool = False) -> Array:
        return x.sum() if axis is None else x.sum(axis, keepdim=keep)

    def mean(self, x: Array, axis: int | None = None, keep: bool = False) -> Array:
        return x.mean() if axis is None else x.mean(axis, keepdim=keep)

    def largest(self, x: Array, axis: int) -> Array:
        return x.amax(axis, keepdim=True)

    def minimum(self, x: Array, y: Array) -> Array:
        return self.torch.clamp(x, max=y)

    def concatenated(self, parts: list[Array], axis: int) -> Array:
        return self.torch.cat(parts, axis)

    def counted(self, count: int, like: Array) -> Array:
        return self.torch.arange(count, device=like.device, dtype=like.dtype)

    def picked(self, x: Array, labels: Array) -> Array:
        return self.torch.gather(x, 1, labels)


class JaxMaths:
    """JAX's."""

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        self.jnp = jnp
        self.exp, self.log, self.sqrt, self.where, self.minimum = jnp.exp, jnp.log, jnp.sqrt, jnp.where, jnp.minimum
        self.erf, self.sigmoid = jax.scipy.special.erf, jax.nn.sigmoid

    def sum(self, x: Array, axis: int | None = None, keep: bool = False) -> Array:
        return self.jnp.sum(x, axis, keepdims=keep)

    def mean(self, x: Array, axis: int | None = None, keep: bool = False) -> Array:
        return self.jnp.mean(x, axis, keepdims=keep)

    def largest(self, x: Array, axis: int) -> Array:
        return self.jnp.max(x, axis, keepdims=True)

    def concatenated(self, parts: list[Array], axis: int) -> Array:
        return self.jnp.concatenate(parts, axis)

    def counted(self, count: int, like: Array) -> Array:
        return self.jnp.arange(count, dtype=like.dtype)

    def picked(self, x: Array, labels: Array) -> Array:
        return self.jnp.take_along_axis(x, labels, 1)
