"""The register block of host families that multiply: mr rows by nv vectors of sums. MLIR-free."""

from __future__ import annotations

from tilewright.runtime.limits import HostLimits


def over_budget(mr: int, nv: int, limits: HostLimits, streamed: int = 0) -> str | None:
    """The rule that a register block breaks, or None. streamed: values of k that rows hold while sums pass through memory; 0
    keeps the sums in registers."""
    needed = streamed * mr + mr + 2 if streamed else mr * nv + nv + 1
    if needed > limits.vector_registers:
        return f"register-budget: sums, columns and an element of a row need {needed} of {limits.vector_registers} registers"
    return None


def register_block(columns: int | None, lanes: int, limits: HostLimits) -> tuple[int, int]:
    """Rows and vectors of the main block: what fills the registers, with whole blocks of columns where they are known."""
    if limits.vector_registers < 32:
        return 6, 2
    blocks = ((8, 2), (12, 1)) if limits.vector_bytes == 16 else ((8, 3), (6, 4), (12, 2), (12, 1))
    vectors = None if columns is None else -(-columns // lanes)
    whole = [b for b in blocks if vectors is not None and vectors % b[1] == 0 and (b[1] > 1 or vectors == 1)]
    return whole[0] if whole else blocks[0]
