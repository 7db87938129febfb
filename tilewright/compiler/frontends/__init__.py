"""Front ends: models as frameworks write them, into linalg. Public as `tilewright.frontends`."""

from tilewright.compiler.frontends.registry import lowerings, register

__all__ = ["lowerings", "register"]
