"""Calls of device functions replaced by their bodies, so that a kernel is one flat list. Recursion is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.runtime.emulator.machine.findings import EmulatorError
from tilewright.runtime.emulator.ptx.ptx_scopes import rename_item
from tilewright.runtime.emulator.ptx.ptx_syntax import (
    Arguments,
    BodyItem,
    BranchTargets,
    Function,
    Instruction,
    Label,
    Module,
    PtxOperand,
    Register,
    Symbol,
    Variable,
)

_DEEPEST = 64  # calls within calls
_LONGEST = 1 << 18  # instructions of a kernel with all that it calls


@dataclass
class FlatKernel:
    """A kernel with everything it calls: registers, variables and body."""

    kernel: Function
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    body: list[BodyItem] = field(default_factory=list)


def flatten(module: Module, kernel: Function) -> FlatKernel:
    """Inline every call of a function that the module defines."""
    flat = FlatKernel(kernel, dict(kernel.registers), list(kernel.variables))
    _Inliner(module, flat).expand(kernel, None, (), "")
    return flat


class _Inliner:
    def __init__(self, module: Module, flat: FlatKernel) -> None:
        self._module = module
        self._flat = flat
        self._count = 0

    def expand(self, function: Function, names: Mapping[str, str] | None, stack: tuple[str, ...], end: str) -> None:
        """Append the body of `function`; `names` says what its names become, None keeps them."""
        if function.name in stack:
            raise EmulatorError(f"{function.name}, line {function.line}: recursive calls are not modelled")
        out = self._flat.body
        if len(stack) > _DEEPEST or len(out) + len(function.body) > _LONGEST:
            raise EmulatorError(f"{function.name}, line {function.line}: calls are nested more than {_DEEPEST} deep, or have "
                                f"more than {_LONGEST} instructions together")

        def rename(name: str) -> str:
            return name if names is None else names.get(name, name)

        for original in function.body:
            if isinstance(original, Label):
                out.append(Label(rename(original.name), original.line))
                continue
            item = original if names is None else rename_item(original, rename)
            if isinstance(item, BranchTargets):
                out.append(BranchTargets(rename(item.name), item.labels, item.line))
            elif isinstance(item, Instruction) and item.parts[0] == "call":
                self._call(item, (*stack, function.name))
            elif isinstance(item, Instruction) and item.parts[0] == "ret" and end:
                jump = (Symbol(end),)
                out.append(Instruction("bra", jump, item.line, item.text, item.predicate, item.negated))
            else:
                out.append(item)

    def _call(self, inst: Instruction, stack: tuple[str, ...]) -> None:
        if inst.predicate is not None:
            raise EmulatorError(f"{stack[0]}, line {inst.line}: `{inst.text}`: a predicated call is not modelled")
        operands = list(inst.operands)
        results = _arguments(operands)
        target = operands.pop(0) if operands else None
        given = _arguments(operands)
        callee = self._module.functions.get(target.name) if isinstance(target, Symbol) else None
        if callee is None:
            raise EmulatorError(f"{stack[0]}, line {inst.line}: `{inst.text}` calls a function that the module does not define")
        formals, returned = callee.parameters, callee.results
        if len(given) != len(formals) or len(results) != len(returned):
            raise EmulatorError(f"{stack[0]}, line {inst.line}: `{inst.text}` does not match the declaration of {callee.name}")
        self._count += 1
        suffix = f"~{self._count}"
        table = {name: name + suffix for name in callee.registers}
        table |= {v.name: v.name + suffix for v in callee.variables}
        table |= {i.name: i.name + suffix for i in callee.body if isinstance(i, Label | BranchTargets)}
        copies_out: list[Instruction] = []
        for formal, actual, into in [(f, a, True) for f, a in zip(formals, given, strict=True)] + [
            (f, a, False) for f, a in zip(returned, results, strict=True)
        ]:
            if formal.space == "param" and isinstance(actual, Symbol):
                table[formal.name] = actual.name
                continue
            own = Register(formal.name + suffix)
            table[formal.name] = own.name
            self._flat.registers[own.name] = formal.type
            move = (own, actual) if into else (actual, own)
            copy = Instruction(f"mov.{formal.type}", move, inst.line, inst.text)
            (self._flat.body if into else copies_out).append(copy)
        self._flat.registers |= {table[name]: kind for name, kind in callee.registers.items()}
        self._flat.variables += [
            Variable(table[v.name], v.space, v.type, v.size, v.align, v.extern, v.initial, v.line) for v in callee.variables
        ]
        end = f"{callee.name}{suffix}"
        self.expand(callee, table, stack, end)
        self._flat.body.append(Label(end, inst.line))
        self._flat.body += copies_out


def _arguments(operands: list[PtxOperand]) -> list[PtxOperand]:
    """Those in the parentheses that come next, which are taken off."""
    if operands and isinstance(operands[0], Arguments):
        operand = operands.pop(0)
        assert isinstance(operand, Arguments)
        return list(operand.elements)
    return []
