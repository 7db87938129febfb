"""Choices of the family `host_codes`: products with weights in few bits, which kernels decode as they read. MLIR-free."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

from tilewright.passes.spaces.gemm_operands import Gemm
from tilewright.passes.spaces.host import host_matmul
from tilewright.passes.spaces.host.host_matmul import Extents, HostMatmulConfig, Pack
from tilewright.passes.spaces.numerics import Numerics
from tilewright.passes.spaces.tile_config import TileConfig, shared
from tilewright.passes.spaces.workload import Kind, Workload
from tilewright.runtime.limits import HostLimits, Limits

PERMUTED = (8, 16)  # f32 of a register that an instruction takes in any order
SCALED_ROWS = 3  # rows of a block from which codes are multiplied by their scale before, not their sums after
_CHAINS = 6  # sums that hide the latency of adding to one of them, with those of the next group beside them
SPLIT_BITS = 4  # of a code that vpmaddubsw multiplies at once
_BYTE_OF_ROWS = 128  # largest magnitude
_MOST_WORDS = 8  # that are added in 16 bits, so that code stays short
_FORMAT = re.compile(r"(?P<sign>[us])(?P<bits>\d+)(?:g(?P<group>\d+))?(?P<zero>[zp]?)")


@dataclass(frozen=True)
class HostCodesConfig(TileConfig):
    """mr x nv: rows and vectors of the register block, of `lanes` f32.

    decode: the columns are decoded to [k][column] in the workspace, a panel or a piece of kc values of k at a time, for a chunk
    of mc rows. Otherwise every block of rows decodes them in registers. table: the values of codes of up to 4 bits lie in a
    register that is permuted by the codes, in place of a mask and a conversion. dot: not 0 where rows are bytes themselves and
    multiplied as integers, for a chunk of mc rows: how many products an instruction adds, 2 (vpmaddubsw) or 4 (vpdpbusd).
    panels, exact_tails, ordered: as of `host_matmul`.
    """

    family: ClassVar[str] = "host_codes"
    mr: int = 1
    nv: int = 3
    lanes: int = 16
    decode: bool = False
    table: bool = False
    mc: int = 0
    kc: int = 0
    panels: int = 1
    exact_tails: bool = False
    ordered: bool = shared(False)
    dot: int = 0

    @property
    def columns(self) -> int:
        return self.nv * self.lanes

    @property
    def product(self) -> HostMatmulConfig:
        """How `host_matmul` would multiply what is decoded."""
        pack = Pack.PANEL if self.decode else Pack.NONE
        return HostMatmulConfig(self.mr, self.nv, self.lanes, pack, 0, self.mc, self.exact_tails, kc=self.kc, panels=self.panels,
                                ordered=self.ordered)

    def in_order(self, workload: Workload, limits: Limits) -> HostCodesConfig:
        """Of all that are decoded first, since blocks of rows differ in how they add what they decode themselves."""
        if self.decode or self.dot or not isinstance(limits, HostLimits):
            return replace(self, ordered=True)
        return replace(self, decode=True, ordered=True)


@dataclass(frozen=True)
class Format:
    """bits: of a code; 3, 5, 6 and 7 of them lie in tensors of 1, 2 and 4. group: values of k of a scale, 0 for
    all. zero: have groups zero points of their own?"""

    bits: int
    group: int
    zero: bool

    @staticmethod
    def of(workload: Workload) -> Format | None:
        """Of the weights in few bits that a workload multiplies, laid out in panels; None where it has none."""
        found = [_format(o.codes) for o in workload.inputs if o.panel]
        return next((f for f in found if f is not None), None)

    @staticmethod
    def of_rows(workload: Workload) -> Format | None:
        """Of the rows, where they are bytes with a sign and no zero point."""
        found = [_FORMAT.fullmatch(o.codes) for o in workload.inputs if not o.panel]
        return next((Format(8, int(m["group"] or 0), False) for m in found if m is not None and m["sign"] == "s"
                     and not m["zero"]), None)

    @property
    def word(self) -> int:
        """Values of k in a word, of the tensor with most."""
        return 32 // (self.bits & -self.bits)

    @property
    def planes(self) -> int:
        """Tensors that the bits of a code lie in."""
        return self.bits.bit_count()


def _format(text: str) -> Format | None:
    found = _FORMAT.fullmatch(text)
    return None if found is None else Format(int(found["bits"]), int(found["group"] or 0), found["zero"] == "z")


def takes(workload: Workload, limits: HostLimits, numerics: Numerics) -> str | None:
    """The rule by which the family does not take a contraction, or None."""
    return _untaken(workload)


def _untaken(workload: Workload) -> str | None:
    form, gemm = Format.of(workload), Gemm.of(workload)
    if form is None or gemm is None:
        return "codes: no operand holds weights in few bits that are laid out in panels"
    if form.group % form.word:
        return f"whole-words: groups of {form.group} values are no multiple of the {form.word} in a word"
    return None


def space(workload: Workload, limits: HostLimits) -> Iterator[HostCodesConfig]:
    """All legal configurations."""
    lanes = limits.lanes(4)
    blocks = [(mr, nv) for mr in range(1, 13) for nv in range(1, 7)]
    registers = (HostCodesConfig(mr, nv, lanes, table=table, mc=chunk * mr, exact_tails=exact)
                 for (mr, nv), table, chunk, exact in product(blocks, (False, True), (0, 1, 4), (False, True)))
    dots = (HostCodesConfig(mr, nv, lanes, dot=limits.byte_products, mc=chunk * mr, exact_tails=exact)
            for (mr, nv), chunk, exact in product(blocks, (1, 4, 16), (False, True)) if limits.byte_products > 1)
    decoded = (HostCodesConfig(mr, nv, lanes, True, False, chunk * mr, kc, panels if kc else 1, exact)
               for (mr, nv), chunk, kc, panels, exact in product(blocks, (0, 8, 16, 32), (0, 512, 1024), (4, 8), (False, True)))
    for config in dict.fromkeys((*registers, *dots, *decoded)):
        if why_invalid(config, workload, limits) is None:
            yield config


def why_invalid(config: HostCodesConfig, workload: Workload, limits: HostLimits) -> str | None:
    """The rule that the configuration breaks, or None."""
    if workload.kind is not Kind.CONTRACTION:
        return f"contraction: the workload is {workload.kind.value}"
    form = Format.of(workload)
    if (reason := _untaken(workload)) is not None or form is None:
        return reason
    tile = host_matmul.prepacked(workload)
    if min(config.mr, config.nv) < 1 or tile % config.columns:
        return f"panels-in-blocks: panels of {tile} columns are read in equal blocks, not of {config.columns}"
    if config.table and (not limits.permutes or config.lanes not in PERMUTED or 1 << form.bits > config.lanes):
        return f"table-in-register: the {1 << form.bits} values of {form.bits} bits are no register of {config.lanes} to permute"
    if config.kc % form.word:
        return f"whole-words: pieces of {config.kc} values are no multiple of the {form.word} in a word"
    if config.dot:
        return _undotted(config, form, workload, limits)
    if not config.decode and (config.kc or config.panels > 1):
        return "whole-k: blocks that decode in registers take all of k and one panel"
    if not config.decode:
        needed = registers(config)
        if needed > limits.vector_registers:
            return f"register-budget: sums, words and factors need {needed} of {limits.vector_registers} registers"
        return None
    return host_matmul.why_invalid(config.product, plain(workload), limits)


def _undotted(config: HostCodesConfig, form: Format, workload: Workload, limits: HostLimits) -> str | None:
    """Why rows and columns are not multiplied as integers, or None."""
    rows, depth = Format.of_rows(workload), extents_of(workload).depth.constant
    if rows is None or config.dot not in (2, 4) or config.dot > limits.byte_products:
        return "bytes: the rows are no bytes with a sign, or the target does not multiply bytes"
    if config.decode or config.table or config.kc or config.panels > 1:
        return "as-stored: integers are multiplied as they are stored, all of k at once"
    if not depth or depth * ((1 << form.bits) - 1) * _BYTE_OF_ROWS >= 1 << 31:
        return f"sums-in-32-bits: {depth} products of {form.bits} by 8 bits"
    if form.planes > 1:
        return f"one-plane: the {form.bits} bits of a code lie in {form.planes} tensors"
    small, large = sorted(g if 0 < g < depth else depth for g in (rows.group, form.group))
    if small < depth and (small % max(8, form.word) or (large % small and large != depth)):
        return f"nested-groups: {rows.group} values of the rows, {form.group} of the columns, in words of {form.word} and 8"
    needed = registers(config)
    if needed > limits.vector_registers:
        return f"register-budget: sums, words and factors need {needed} of {limits.vector_registers} registers"
    return None


def words_of_sums(bits: int) -> int:
    """Words of codes whose products with bytes never leave 16 bits when all are added there, by twos that stand side by side."""
    width = min(bits, SPLIT_BITS)
    return min(_MOST_WORDS, ((1 << 15) - 1) // (8 // bits * 2 * ((1 << width) - 1) * _BYTE_OF_ROWS))


def sets_of_sums(mr: int, nv: int) -> int:
    """Sums of each element of a block of few rows, added to in turn: enough to hide the latency of adding to one of them."""
    return 2 if mr < SCALED_ROWS and mr * nv < _CHAINS else 1


def registers(config: HostCodesConfig) -> int:
    """Of a block that decodes its columns: sums, of a group beside those of all groups, words, and two factors. Sums of integers
    of a group in a block of more rows stand alone: those of all groups may lie in memory meanwhile."""
    if config.dot:
        return config.mr * config.nv * (2 if config.mr < SCALED_ROWS else 1) + config.nv + 2
    sets = 1 + sets_of_sums(config.mr, config.nv) if config.mr < SCALED_ROWS else 1
    return config.mr * config.nv * sets + config.nv + 2 + config.table


def plain(workload: Workload) -> Workload:
    """The workload as if its weights were computed, and laid out in no panels."""
    return replace(workload, inputs=tuple(replace(o, panel=0, codes="") for o in workload.inputs))


def extents_of(workload: Workload) -> Extents:
    """Rows stream, columns lie along the vectors."""
    return replace(Extents.of(workload), element_bytes=4, transposed=False)
