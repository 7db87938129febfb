"""A kernel made ready: registers and variables placed, the body cut into segments of runners that end in control flow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.runtime.emulator.alu import alu_function
from tilewright.runtime.emulator.alu.build_context import BuildContext, Slot, VariablePlace
from tilewright.runtime.emulator.alu.convert import is_plain_move
from tilewright.runtime.emulator.alu.instruction_kinds import Continuation, WarpStep, find
from tilewright.runtime.emulator.instruction_set import CONTROL, ELEMENTWISE, ORDINARY, WARP_STEPS
from tilewright.runtime.emulator.machine.findings import EmulatorError, PtxSite
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.machine.storage import LOCAL_BASE, PARAM_BASE, SHARED_BASE
from tilewright.runtime.emulator.ptx.inline import FlatKernel, flatten
from tilewright.runtime.emulator.ptx.ptx_syntax import (
    BodyItem,
    BranchTargets,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    PtxOperand,
    Variable,
)
from tilewright.runtime.emulator.ptx.ptx_types import type_bits

_LONGEST_PACK = 64
_SHAPE = re.compile(r"m\d+n\d+k\d+")
_SPACES = ("global", "shared", "local", "param", "const")


@dataclass
class Segment:
    """Straight-line code. `head` waits for lanes of its warp; `end` says where to go on, None falls through."""

    index: int
    site: PtxSite
    head: WarpStep | None = None
    head_predicate: tuple[int, bool] | None = None
    body: list[InstructionRunner] = field(default_factory=list)
    end: Continuation | None = None
    count: int = 0
    classes: Counter[str] = field(default_factory=Counter)


@dataclass
class Parameter:
    """A kernel parameter: its name and its bytes in the parameter block."""

    name: str
    offset: int
    size: int
    type: str


@dataclass
class PtxProgram:
    """A kernel ready to execute."""

    name: str
    segments: list[Segment]
    registers: dict[int, int]
    parameters: list[Parameter]
    parameter_bytes: int
    static_shared: int
    dynamic_align: int
    local_bytes: int
    race_granule: int
    directives: dict[str, tuple[int, ...]]


def build_program(module: Module, name: str, global_places: Mapping[str, VariablePlace]) -> PtxProgram:
    """Make kernel `name` ready. `global_places` are the addresses of the module's variables in global memory."""
    flat = flatten(module, module.kernels[name])
    slots, registers = _place_registers(flat)
    variables = dict(global_places)
    parameters, parameter_bytes = _place_parameters(flat, variables)
    static_shared, dynamic_align = _place_shared(module, flat, variables)
    local_bytes = _place_local(flat, variables)
    granule = _race_granule(flat, variables)
    cx = BuildContext(name, slots, variables, race_granule=granule)
    segments = _Cutter(flat, cx).segments()
    return PtxProgram(
        name, segments, registers, parameters, parameter_bytes, static_shared, dynamic_align, local_bytes, granule,
        flat.kernel.directives,
    )  # fmt: skip


def _place_registers(flat: FlatKernel) -> tuple[dict[str, Slot], dict[int, int]]:
    counts: dict[int, int] = {}
    slots: dict[str, Slot] = {}
    for register, kind in flat.registers.items():
        bits = {8: 16}.get(type_bits(kind), type_bits(kind))
        if bits > 64:
            raise EmulatorError(f"{flat.kernel.name}: registers of type .{kind} are not modelled")
        slots[register] = Slot(bits, counts.get(bits, 0))
        counts[bits] = counts.get(bits, 0) + 1
    return slots, counts


def _up(value: int, align: int) -> int:
    return -(-value // align) * align


def _place_parameters(flat: FlatKernel, variables: dict[str, VariablePlace]) -> tuple[list[Parameter], int]:
    found: list[Parameter] = []
    offset = PARAM_BASE
    for p in flat.kernel.parameters:
        offset = _up(offset, p.align)
        found.append(Parameter(p.name, offset, p.size, p.type))
        variables[p.name] = VariablePlace("param", offset, p.size)
        offset += p.size
    return found, offset


def _place_shared(module: Module, flat: FlatKernel, variables: dict[str, VariablePlace]) -> tuple[int, int]:
    """Static variables from SHARED_BASE on, then the dynamic part; bytes of the first and alignment of the second."""
    shared = [v for v in (*module.variables, *flat.variables) if v.space == "shared"]
    top = SHARED_BASE
    for v in (v for v in shared if v.size):
        top = _up(top, v.align)
        variables[v.name] = VariablePlace("shared", top, v.size)
        top += v.size
    dynamic = [v for v in shared if not v.size]
    align = max([16, *(v.align for v in dynamic)])
    if dynamic:
        top = _up(top, align)
    for v in dynamic:
        variables[v.name] = VariablePlace("shared", top, 0)
    return top - SHARED_BASE, align


def _place_local(flat: FlatKernel, variables: dict[str, VariablePlace]) -> int:
    """Local variables, and the parameters of calls, which live there too."""
    top = LOCAL_BASE
    local: list[Variable] = [v for v in flat.variables if v.space in ("local", "param")]
    for v in local:
        top = _up(top, v.align)
        variables[v.name] = VariablePlace("local", top, v.size)
        top += v.size
    return top - LOCAL_BASE


def _race_granule(flat: FlatKernel, variables: Mapping[str, VariablePlace]) -> int:
    """Bytes of the smallest access that may touch shared memory: finer tracking than that finds nothing more."""
    smallest = 16
    for item in flat.body:
        if not isinstance(item, Instruction) or item.parts[0] not in ("ld", "st", "atom", "red", "cp", "ldmatrix", "stmatrix"):
            continue
        if item.parts[0] != "cp" and any(p.split("::")[0] in ("global", "const", "local", "param") for p in item.parts):
            continue
        if item.parts[0] == "cp":
            last = item.operands[2] if len(item.operands) > 2 else None
            size = last.value if isinstance(last, Immediate) and item.parts[2] in ("ca", "cg") else 16
        elif item.parts[0] in ("ldmatrix", "stmatrix"):
            size = 16
        else:
            words = next((int(p[1:]) for p in item.parts if p in ("v2", "v4", "v8")), 1)
            size = type_bits(item.parts[-1]) // 8 * (words if item.parts[0] in ("ld", "st") else 1)
        smallest = min(smallest, size)
    return smallest


def opcode_class(inst: Instruction) -> str:
    """What statistics count by: the operation, with the state space of memory, the type of arithmetic, the shape of a product
    of matrices."""
    head = inst.parts[0]
    if head in ("ld", "st", "atom", "red"):
        spaces = [p.split("::")[0] for p in inst.parts[1:]]
        return f"{head}.{next((p for p in spaces if p in _SPACES), 'generic')}"
    shape = next((p for p in inst.parts if _SHAPE.fullmatch(p)), "")
    if head in ("mma", "wgmma") and shape:
        return ".".join((*inst.parts[:2], shape))
    if inst.parts[:2] == ("cp", "async"):
        return ".".join(inst.parts[:3])
    if head in ("cp", "bar", "barrier", "mma", "wgmma", "mbarrier", "shfl", "vote", "match", "redux"):
        return ".".join(inst.parts[:2])
    return f"{head}.{inst.parts[-1]}" if len(inst.parts) > 1 else head


class _Cutter:
    """Cuts a body into segments and makes each ready."""

    def __init__(self, flat: FlatKernel, cx: BuildContext) -> None:
        self._cx = cx
        self._pieces: list[list[Instruction]] = [[]]
        labels: dict[str, int] = {}
        tables: dict[str, tuple[str, ...]] = {}
        for item in flat.body:
            self._place(item, labels, tables)
        self._pieces.append([_implicit_exit(flat)])
        self._merge_empty(labels)
        cx.labels, cx.tables = labels, tables

    def _place(self, item: BodyItem, labels: dict[str, int], tables: dict[str, tuple[str, ...]]) -> None:
        if isinstance(item, BranchTargets):
            tables[item.name] = item.labels
        elif isinstance(item, Label):
            if self._pieces[-1]:
                self._pieces.append([])
            labels[item.name] = len(self._pieces) - 1
        else:
            if find(WARP_STEPS, item) is not None and self._pieces[-1]:
                self._pieces.append([])
            self._pieces[-1].append(item)
            if find(CONTROL, item) is not None:
                self._pieces.append([])

    def _merge_empty(self, labels: dict[str, int]) -> None:
        """Drop pieces without instructions; labels there move to the next one."""
        moved: list[int] = []
        kept: list[list[Instruction]] = []
        for piece in self._pieces:
            moved.append(len(kept))
            if piece:
                kept.append(piece)
        self._pieces = kept
        for name in labels:
            labels[name] = moved[labels[name]]

    def segments(self) -> list[Segment]:
        return [self._segment(i, piece) for i, piece in enumerate(self._pieces)]

    def _segment(self, index: int, piece: list[Instruction]) -> Segment:
        cx = self._cx
        cx.following = index + 1
        segment = Segment(index, cx.site(piece[0]), count=len(piece))
        segment.classes.update(opcode_class(inst) for inst in piece)
        rest = list(piece)
        step = find(WARP_STEPS, rest[0])
        if step is not None:
            head = rest.pop(0)
            segment.head = step(head, cx)
            if head.predicate is not None:
                slot = cx.slot(head.predicate)
                if slot is None:
                    raise cx.refuse(head, f"{head.predicate.name} is not a register of this kernel")
                segment.head_predicate = slot.row, head.negated
            segment.body.append(self._guarded(head, segment.head.run))
        if rest:
            control = find(CONTROL, rest[-1])
            if control is not None:
                segment.end = _guarded_control(rest[-1], control(rest[-1], cx), cx)
                rest.pop()
        segment.body += self._runners(rest)
        return segment

    def _runners(self, insts: list[Instruction]) -> list[InstructionRunner]:
        runners: list[InstructionRunner] = []
        i = 0
        while i < len(insts):
            inst = insts[i]
            ordinary = find(ORDINARY, inst)
            if ordinary is not None and not (inst.parts[0] == "mov" and is_plain_move(inst)):
                runners.append(self._guarded(inst, ordinary(inst, self._cx)))
                i += 1
                continue
            spec = find(ELEMENTWISE, inst)
            if spec is None:
                raise self._cx.refuse(inst, f"the emulator does not know {inst.parts[0]!r}")
            made = self._specify(inst, spec)
            run = self._independent(insts, i, made) if alu_function.packable(inst, made, self._cx) else 1
            if run > 1:
                runners.append(alu_function.pack(insts[i : i + run], made, self._cx))
            else:
                runners.append(self._guarded(inst, alu_function.build(inst, made, self._cx)))
            i += run
        return runners

    def _specify(self, inst: Instruction, spec: alu_function.Spec) -> alu_function.Elementwise:
        try:
            return spec(inst)
        except (KeyError, StopIteration, IndexError, ValueError) as error:
            raise self._cx.refuse(inst, f"the form of this instruction is not modelled ({error!r})") from error

    def _independent(self, insts: list[Instruction], start: int, spec: alu_function.Elementwise) -> int:
        """How many instructions from `start` on have one shape and read and write no result of one another."""
        shape, written = alu_function.shape_of(insts[start]), set[str]()
        count = 0
        for inst in insts[start : start + _LONGEST_PACK]:
            if alu_function.shape_of(inst) != shape or not alu_function.packable(inst, spec, self._cx):
                break
            used = {alu_function.names(operand) for operand in inst.operands}
            if used & written:
                break
            target = alu_function.names(inst.operands[0])
            written.add(target or "")
            count += 1
        return max(count, 1)

    def _guarded(self, inst: Instruction, run: InstructionRunner) -> InstructionRunner:
        if inst.predicate is None:
            return run
        operand: PtxOperand = Negated(inst.predicate) if inst.negated else inst.predicate
        predicate = self._cx.source(inst, operand, "pred")

        def guarded(machine: Machine) -> None:
            chosen = predicate(machine) & machine.active()
            if chosen.any():
                with machine.only(chosen):
                    run(machine)

        return guarded


def _implicit_exit(flat: FlatKernel) -> Instruction:
    return Instruction("exit", (), flat.kernel.line, "end of the body")


def _guarded_control(inst: Instruction, run: Continuation, cx: BuildContext) -> Continuation:
    """A predicated control instruction other than a branch: the other lanes go on behind it."""
    if inst.predicate is None or inst.parts[0] == "bra":
        return run
    operand: PtxOperand = Negated(inst.predicate) if inst.negated else inst.predicate
    predicate, following = cx.source(inst, operand, "pred"), cx.following

    def guarded(machine: Machine) -> int | None:
        active = machine.active()
        chosen = predicate(machine) & active
        others = active & ~chosen
        machine.pc[others] = following
        if not chosen.any():
            return following
        with machine.only(chosen):
            target = run(machine)
        if target is not None:
            machine.pc[chosen] = target
        return None

    return guarded
