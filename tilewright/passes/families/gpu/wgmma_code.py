"""wgmma as text: products whose left operand is in registers too, and waits and fences that values pass through.

What a product writes, and what it reads of registers, is not to be touched between it and the wait for it. To LLVM a wait is an
instruction like others, so the values go into it and come out of it: nothing that reads them can move across.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.passes.mlir import ir, llvm
from tilewright.passes.spaces.gpu.wgmma import ROWS

_LETTERS = {"f32": "f", "i32": "r", "i64": "l"}


@dataclass(frozen=True)
class WgmmaCode:
    """Products of 64 rows by `columns` by `depth` in f32. kinds: PTX names of the element types. turned: which operands are
    contiguous along their outer axis; registers are not."""

    columns: int
    depth: int
    kinds: tuple[str, str]
    turned: tuple[bool, bool]

    def product(self, held: Sequence[ir.Value], left: Sequence[ir.Value], right: ir.Value) -> list[ir.Value]:
        """The sums of a thread. held: those to add to, or none. left: a descriptor, or the registers of 32 bytes along k."""
        sums = self.columns // 2
        places = [f"${sums + len(held) + i}" for i in range(len(left) + 1)]
        a = places[0] if len(left) == 1 else f"{{{', '.join(places[:-1])}}}"
        turned = ", ".join(str(int(t)) for t in (self.turned if len(left) == 1 else self.turned[1:]))
        total = ", ".join(f"${i}" for i in range(sums))
        name = f"wgmma.mma_async.sync.aligned.m{ROWS}n{self.columns}k{self.depth}.f32.{'.'.join(self.kinds)}"
        text = (f"{{\n.reg .pred p;\nsetp.ne.b32 p, {int(bool(held))}, 0;\n"
                f"{name} {{{total}}}, {a}, {places[-1]}, p, 1, 1, {turned};\n}}")
        return _emit(text, [ir.F32Type.get()] * sums, held, [*left, right])


def fence(values: Sequence[ir.Value]) -> list[ir.Value]:
    """The registers of these values are ready for products; products before are not waited for."""
    return _emit("wgmma.fence.sync.aligned;", [v.type for v in values], values, [])


def commit() -> None:
    """The products since the last one are a group."""
    _emit("wgmma.commit_group.sync.aligned;", [], [], [])


def wait(groups: int, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Waits for all but the latest `groups` groups; values: theirs, and what is to be computed before."""
    return _emit(f"wgmma.wait_group.sync.aligned {groups};", [v.type for v in values], values, [])


def unknown(value: ir.Value, here: bool = False) -> ir.Value:
    """The same value, of whose bits LLVM knows nothing: it then adds to a descriptor as a whole, in one instruction. here: what
    follows from it is computed behind this place, not in front of a loop around it."""
    kind = str(value.type)
    letter = _LETTERS[kind]
    text = f"mov.b{kind[1:]} $0, $1;"
    return llvm.InlineAsmOp(value.type, [value], text, f"={letter},{letter}", has_side_effects=here).results[0]


def _emit(text: str, types: Sequence[ir.Type], tied: Sequence[ir.Value], more: Sequence[ir.Value]) -> list[ir.Value]:
    """tied: values in the registers of the first results."""
    made = [f"={_LETTERS[str(t)]}" for t in types]
    constraints = ",".join([*made, *(str(i) for i in range(len(tied))), *(_LETTERS[str(v.type)] for v in more), "~{memory}"])
    struct = ir.Type.parse(f"!llvm.struct<({', '.join(map(str, types))})>") if len(types) > 1 else types[0] if types else None
    op = llvm.InlineAsmOp(struct, [*tied, *more], text, constraints, has_side_effects=True)
    if len(types) < 2:
        return list(op.results)
    return [llvm.ExtractValueOp(t, op.results[0], ir.DenseI64ArrayAttr.get([i])).result for i, t in enumerate(types)]
