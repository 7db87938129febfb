"""Special functions: gamma, the normal distribution, Bessel."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.compiler import ops
from tilewright.compiler.frontends.registry import register
from tilewright.compiler.frontends.torch.context import Context
from tilewright.compiler.frontends.torch.elementwise import (
    TO_FLOAT,
    Function,
    elementwise,
    met,
    names,
    register_binary,
    register_unary,
)
from tilewright.compiler.ops import scalar_functions as scalar
from tilewright.compiler.ops import special_functions as special

_FUNCTIONS: Mapping[str, Function] = {
    "lgamma": special.lgamma,
    "digamma": special.digamma,
    "erfinv": special.erfinv,
    "i0": special.i0,
    "special_i0e": special.i0e,
    "special_i1": special.i1,
    "special_i1e": special.i1e,
    "special_entr": special.entropy,
    "special_erfcx": special.erfcx,
    "special_log_ndtr": special.log_ndtr,
    "special_ndtr": special.ndtr,
    "special_ndtri": special.ndtri,
    "special_spherical_bessel_j0": special.spherical_bessel_j0,
    "special_bessel_j0": special.bessel_j(0),
    "special_bessel_j1": special.bessel_j(1),
    "special_bessel_y0": special.bessel_y(0),
    "special_bessel_y1": special.bessel_y(1),
    "special_modified_bessel_i0": special.i0,
    "special_modified_bessel_i1": special.i1,
    "special_modified_bessel_k0": special.bessel_k(0, scaled=False),
    "special_modified_bessel_k1": special.bessel_k(1, scaled=False),
    "special_scaled_modified_bessel_k0": special.bessel_k(0, scaled=True),
    "special_scaled_modified_bessel_k1": special.bessel_k(1, scaled=True),
}
for _name, _function in _FUNCTIONS.items():
    register_unary(names(_name), _function)
register_binary(names("special_xlog1py", overloads=("default", "self_scalar", "other_scalar")),
                lambda x, y: scalar.x_log_y(x, y, plus_one=True), TO_FLOAT)  # fmt: skip


@register("torch", *names("polygamma", "special_polygamma"))
def polygamma(context: Context, order: int, x: ops.Tensor) -> ops.Tensor:
    """The derivative of order + 1 of log gamma."""
    return elementwise(context, special.polygamma(order), [x], met(context, [1], TO_FLOAT))
