"""The register block of host families that multiply: mr rows by nv vectors of sums. MLIR-free."""

from __future__ import annotations

from tilewright.runtime.limits import HostLimits

DISTANT_BYTES = 64 << 20  # of a last cache that many cores share, from which on its lines take long to come


def values_of_word(bf16: bool, signs: tuple[bool, bool] | None, limits: HostLimits) -> int:
    """Neighbouring values of k that one instruction multiplies and adds, in words of 32 bits: 4 of bytes, 2 of bf16 or of bytes
    that are widened; 1 where the target has none. bf16: are both factors? signs: of both, where they are bytes."""
    if bf16:
        return 2 if limits.bf16_pairs else 1
    if signs is None:
        return 1
    return limits.byte_products if signs[0] != signs[1] else min(2, limits.byte_products)


def over_budget(mr: int, nv: int, limits: HostLimits, streamed: int = 0) -> str | None:
    """The rule that a register block breaks, or None. streamed: values of k that rows hold while sums pass through memory; 0
    keeps the sums in registers."""
    needed = streamed * mr + mr + 2 if streamed else mr * nv + nv + 1
    if needed > limits.vector_registers:
        return f"register-budget: sums, columns and an element of a row need {needed} of {limits.vector_registers} registers"
    return None


def register_block(columns: int | None, lanes: int, limits: HostLimits) -> tuple[int, int]:
    """Rows and vectors of the main block: what fills the registers, with whole blocks of columns where they are known."""
    blocks = _blocks(limits)
    vectors = None if columns is None else -(-columns // lanes)
    whole = [b for b in blocks if vectors is not None and vectors % b[1] == 0 and (b[1] > 1 or vectors == 1)]
    return whole[0] if whole else blocks[0]


def panel_block(columns: int, lanes: int, limits: HostLimits) -> tuple[int, int]:
    """Rows and vectors of the block that a product reads constant columns in. Where registers are few, the least work for all
    columns: multiply-adds and loads weigh alike, since each core gives two of both a cycle and work beside it on the core takes
    of both. Of 4 x 3 and 6 x 2, which fill 16 registers, the first has 7 loads for 12 multiply-adds, the second 8; but a last
    block of fewer vectors is done in the time of a whole one, since fewer sums hide less latency. Where registers are many and
    the last cache is distant, the most rows by two vectors: the first block of rows waits for the columns as they come from
    there, and rows of its own are all that it can do meanwhile."""
    usual = register_block(columns, lanes, limits)
    vectors = -(-columns // lanes)
    if limits.vector_registers >= 32:
        tall = rows_beside(2, limits), 2
        return tall if limits.l3 >= DISTANT_BYTES and tall in _blocks(limits) and vectors % 2 == 0 else usual

    def work(block: tuple[int, int]) -> float:
        (mr, nv), (whole, left) = block, divmod(vectors, block[1])
        return (-(-vectors // nv) * mr * nv + whole * (mr + nv) + (mr + left if left else 0)) / mr

    return min(usual, (4, 3), key=work)


def rows_beside(nv: int, limits: HostLimits) -> int:
    """Rows of a block of so many vectors: of the main block with that many, or as the registers allow."""
    most = max(1, (limits.vector_registers - 1) // nv - 1)
    blocks = _blocks(limits)
    return min(most, next((mr for mr, n in blocks if n == nv), blocks[0][0]))


def _blocks(limits: HostLimits) -> tuple[tuple[int, int], ...]:
    """Rows by vectors of blocks that fill the registers, the best first."""
    if limits.vector_registers < 32:
        return ((6, 2),)
    return ((8, 2), (12, 1)) if limits.vector_bytes == 16 else ((8, 3), (6, 4), (12, 2), (12, 1))
