"""The register block of host families that multiply: mr rows by nv vectors of sums. MLIR-free."""

from __future__ import annotations

from runtime.limits import HostLimits


def over_budget(mr: int, nv: int, limits: HostLimits, streamed: int = 0) -> str | None:
    """The rule that a register block breaks, or None. streamed: values of k that rows hold while sums pass through memory; 0
    keeps the sums in registers."""
    needed = streamed * mr + mr + 2 if streamed else mr * nv + nv + 1
    if needed > limits.vector_registers:
        return f"register-budget: sums, columns and an element of a row need {needed} of {limits.vector_registers} registers"
    return None
