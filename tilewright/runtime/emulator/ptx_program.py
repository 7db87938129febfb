"""A kernel made ready: registers and variables placed, the body cut into segments of runners that end in control flow."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tilewright.runtime.emulator.alu import alu_function
from tilewright.runtime.emulator.alu.build_context import BuildContext, Slot, VariablePlace
from tilewright.runtime.emulator.alu.convert import is_plain_move
from tilewright.runtime.emulator.alu.instruction_kinds import Continuation, WarpStep, find
from tilewright.runtime.emulator.instruction_set import CONTROL, ELEMENTWISE, ORDINARY, WARP_STEPS
from tilewright.runtime.emulator.launch_order import before_wait
from tilewright.runtime.emulator.machine.findings import EmulatorError, PtxSite
from tilewright.runtime.emulator.machine.machine import InstructionRunner, Machine
from tilewright.runtime.emulator.machine.storage import LOCAL_BASE, PARAM_BASE, SHARED_BASE
from tilewright.runtime.emulator.ptx.inline import FlatKernel, flatten
from tilewright.runtime.emulator.ptx.ptx_limits import MOST_LOCAL, MOST_PARAMETERS
from tilewright.runtime.emulator.ptx.ptx_scopes import names_in
from tilewright.runtime.emulator.ptx.ptx_syntax import (
    BodyItem,
    BranchTargets,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    PtxOperand,
    Symbol,
    Variable,
)
from tilewright.runtime.emulator.ptx.ptx_types import type_bits
from tilewright.runtime.emulator.unset_registers import Flow, RegisterUse, read_before_written, watched

_LONGEST_PACK = 64
MISFITS = (ArithmeticError, AssertionError, AttributeError, LookupError, StopIteration, TypeError, ValueError)
"""What an instruction raises, when it is made ready or runs, whose operands or parts are not those of its opcode."""
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
    before_wait: PtxSite | None = None

    @property
    def register_bytes(self) -> int:
        """Of a thread."""
        return sum(count * max(bits, 8) // 8 for bits, count in self.registers.items())

    @property
    def instructions(self) -> int:
        return sum(segment.count for segment in self.segments)


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
        flat.kernel.directives, before_wait(flat),
    )  # fmt: skip


def _place_registers(flat: FlatKernel) -> tuple[dict[str, Slot], dict[int, int]]:
    """Those that an instruction names."""
    counts: dict[int, int] = {}
    slots: dict[str, Slot] = {}
    instructions = [item for item in flat.body if isinstance(item, Instruction)]
    named = {name for inst in instructions for operand in inst.operands for name in names_in(operand)}
    named |= {inst.predicate.name for inst in instructions if inst.predicate is not None}
    for register, kind in flat.registers.items():
        if register not in named:
            continue
        bits = {8: 16}.get(type_bits(kind), type_bits(kind))
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
        if offset + p.size > MOST_PARAMETERS:
            raise EmulatorError(f"{flat.kernel.name}, line {p.line}: more than {MOST_PARAMETERS} bytes of parameters")
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
        if top > MOST_LOCAL:
            raise EmulatorError(f"{flat.kernel.name}, line {v.line}: a thread has {MOST_LOCAL} bytes of local memory")
    return top - LOCAL_BASE


def _race_granule(flat: FlatKernel, variables: Mapping[str, VariablePlace]) -> int:
    """Bytes of the smallest access that may touch shared memory: finer tracking than that finds nothing more."""
    found = [16]
    for item in flat.body:
        if isinstance(item, Instruction):
            with suppress(EmulatorError, *MISFITS):  # it is refused by name when it is made ready
                found.append(max(1, _shared_bytes(item)))
    return min(found)


def _shared_bytes(item: Instruction) -> int:
    """Bytes of an access that may touch shared memory; 16 for other instructions."""
    head = item.parts[0]
    if head not in ("ld", "st", "atom", "red", "cp"):
        return 16
    if head == "cp":
        last = item.operands[2] if len(item.operands) > 2 else None
        return last.value if isinstance(last, Immediate) and item.parts[2] in ("ca", "cg") else 16
    if any(p.split("::")[0] in ("global", "const", "local", "param") for p in item.parts):
        return 16
    words = next((int(p[1:]) for p in item.parts if p in ("v2", "v4", "v8")), 1)
    return type_bits(item.parts[-1]) // 8 * (words if head in ("ld", "st") else 1)


@functools.lru_cache(maxsize=4096)
def opcode_class(opcode: str) -> str:
    """What statistics count by: the operation, with the state space of memory, the type of arithmetic, the shape of a product
    of matrices."""
    head, *rest = parts = opcode.split(".")
    if head in ("ld", "st", "atom", "red"):
        spaces = [p.split("::")[0] for p in rest]
        return f"{head}.{next((p for p in spaces if p in _SPACES), 'generic')}"
    shape = next((p for p in parts if _SHAPE.fullmatch(p)), "")
    if head in ("mma", "wgmma") and shape:
        return ".".join((*parts[:2], shape))
    if parts[:2] == ["cp", "async"]:
        return ".".join(parts[:3])
    if head in ("cp", "bar", "barrier", "mma", "wgmma", "mbarrier", "shfl", "vote", "match", "redux"):
        return ".".join(parts[:2])
    return f"{head}.{rest[-1]}" if rest else head


class _Cutter:
    """Cuts a body into segments and makes each ready."""

    def __init__(self, flat: FlatKernel, cx: BuildContext) -> None:
        self._cx = cx
        self._flows: list[Flow] = []
        self._pieces: list[list[Instruction]] = [[]]
        labels: dict[str, int] = {}
        tables: dict[str, tuple[str, ...]] = {}
        for item in flat.body:
            self._place(item, labels, tables)
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
        found = [self._segment(i, piece) for i, piece in enumerate(self._pieces)]
        suspects = read_before_written(self._flows)
        for segment, flow in zip(found, self._flows, strict=True) if suspects else ():
            ends = segment.end is not None
            for i, use in enumerate(flow.uses[: len(flow.uses) - ends]):
                segment.body[i] = watched(segment.body[i], use, suspects)
            if segment.end is not None:
                segment.end = watched(segment.end, flow.uses[-1], suspects)
        return found

    def _segment(self, index: int, piece: list[Instruction]) -> Segment:
        cx = self._cx
        cx.following = index + 1
        self._flows.append(Flow(following=self._following(piece[-1])))
        segment = Segment(index, cx.site(piece[0]), count=len(piece))
        segment.classes.update([opcode_class(inst.opcode) for inst in piece])
        rest = list(piece)
        step = find(WARP_STEPS, rest[0])
        if step is not None:
            head = rest.pop(0)
            with self._use(head):
                segment.head = step(head, cx)
                if head.predicate is not None:
                    slot = cx.slot(head.predicate)
                    if slot is None:
                        raise cx.refuse(head, f"{head.predicate.name} is not a register of this kernel")
                    segment.head_predicate = slot.row, head.negated
                segment.body.append(self._guarded(head, segment.head.run))
        last = rest[-1] if rest else None
        control = find(CONTROL, last) if last is not None else None
        segment.body += self._runners(rest if control is None else rest[:-1])
        if last is not None and control is not None:
            with self._use(last):
                segment.end = _guarded_control(last, control(last, cx), cx)
        return segment

    def _following(self, last: Instruction) -> tuple[int, ...]:
        """The segments that control may reach from one that ends in this instruction."""
        cx, head = self._cx, last.parts[0]
        onward = (cx.following,)
        if head in ("exit", "ret", "trap"):
            return onward if last.predicate is not None else ()
        if head not in ("bra", "brx"):
            return onward
        operand = last.operands[-1] if last.operands else None
        name = operand.name if isinstance(operand, Symbol) else ""
        targets = cx.tables.get(name, ()) if head == "brx" else (name,)
        for target in targets:
            if target not in cx.labels:
                raise cx.refuse(last, f"no label {target}")
        return (*(cx.labels[t] for t in targets), *(onward if last.predicate is not None else ()))

    @contextmanager
    def _use(self, inst: Instruction) -> Iterator[None]:
        """Make an instruction ready, and keep what it reads and writes; what it is made of does not fit its opcode otherwise."""
        cx = self._cx
        cx.reads.clear()
        cx.writes.clear()
        try:
            yield
        except MISFITS as error:
            raise cx.refuse(inst, f"the form of this instruction is not modelled ({error!r})") from error
        guard, predicate = "", None
        reads, writes = frozenset(cx.reads), frozenset(cx.writes)
        cx.unfenced |= writes
        cx.written |= writes
        if inst.predicate is not None:
            guard, predicate = inst.predicate.name, cx.source(inst, _guard_of(inst), "pred")
        self._flows[-1].uses.append(RegisterUse(cx.site(inst), reads - {guard}, writes, guard, predicate))

    def _runners(self, insts: list[Instruction]) -> list[InstructionRunner]:
        runners: list[InstructionRunner] = []
        i = 0
        while i < len(insts):
            inst, run = insts[i], 1
            with self._use(inst):
                ordinary = find(ORDINARY, inst)
                if ordinary is not None and not (inst.parts[0] == "mov" and is_plain_move(inst)):
                    runners.append(self._guarded(inst, ordinary(inst, self._cx)))
                else:
                    spec = find(ELEMENTWISE, inst)
                    if spec is None:
                        raise self._cx.refuse(inst, f"the emulator does not know {inst.parts[0]!r}")
                    made = spec(inst)
                    run = self._independent(insts, i, made) if alu_function.packable(inst, made, self._cx) else 1
                    if run > 1:
                        runners.append(alu_function.pack(insts[i : i + run], made, self._cx))
                    else:
                        runners.append(self._guarded(inst, alu_function.build(inst, made, self._cx)))
            i += run
        return runners

    def _independent(self, insts: list[Instruction], start: int, spec: alu_function.Elementwise) -> int:
        """How many instructions from `start`, a packable one, on have one shape and read and write no result of one another."""
        first, written = insts[start], set[str]()
        count = 0
        for inst in insts[start : start + _LONGEST_PACK]:
            if count and not (inst.opcode == first.opcode and alu_function.packable(inst, spec, self._cx)
                              and alu_function.literals_alike(inst, first)):
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
        predicate = self._cx.source(inst, _guard_of(inst), "pred")

        def guarded(machine: Machine) -> None:
            chosen = predicate(machine) & machine.active()
            if chosen.any():
                with machine.only(chosen):
                    run(machine)

        return guarded


def _guard_of(inst: Instruction) -> PtxOperand:
    assert inst.predicate is not None
    return Negated(inst.predicate) if inst.negated else inst.predicate


def _guarded_control(inst: Instruction, run: Continuation, cx: BuildContext) -> Continuation:
    """A predicated control instruction other than a branch: the other lanes go on behind it."""
    if inst.predicate is None or inst.parts[0] == "bra":
        return run
    predicate, following = cx.source(inst, _guard_of(inst), "pred"), cx.following

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
