"""PTX text -> Module. Errors name the line: of what is no PTX, of what is declared twice, and of sizes that no GPU has."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from tilewright.runtime.emulator.ptx import ptx_limits as limits
from tilewright.runtime.emulator.ptx.ptx_scopes import Scope, renamed
from tilewright.runtime.emulator.ptx.ptx_syntax import (
    Address,
    Arguments,
    BodyItem,
    BranchTargets,
    Function,
    Immediate,
    Instruction,
    Label,
    Module,
    Negated,
    Pair,
    PtxOperand,
    Register,
    Symbol,
    Variable,
    Vector,
    register,
)
from tilewright.runtime.emulator.ptx.ptx_tokens import Tokens
from tilewright.runtime.emulator.ptx.ptx_types import type_bits

_SPACES = ("reg", "shared", "global", "const", "local", "param")
_LINKAGE = (".visible", ".extern", ".weak", ".common")
_ENDS = ("ret", "exit", "trap", "bra", "brx")
_NAME = re.compile(r"[%$A-Za-z_]")
_IGNORED = (".loc", ".file", ".pragma", ".alias", ".callprototype", ".noreturn")


def parse_ptx(text: str) -> Module:
    """Parse PTX text. Raises EmulatorError naming line and text where it cannot."""
    parser = _Parser(text)
    try:
        return parser.module()
    except RecursionError:
        raise parser.error("operands or values are nested too deeply") from None


class _Parser(Tokens):
    # Module scope

    def module(self) -> Module:
        module = Module()
        self._names: set[str] = set()
        while self.peek():
            word = self.peek()
            if word == ".version":
                self.next()
                module.version = self._known(limits.why_not_version(self.peek()))
            elif word == ".target":
                self.next()
                names = [self._known(limits.why_not_target(self.peek()))]
                while self.accept(","):
                    names.append(self._known(limits.why_not_target(self.peek())))
                module.target = tuple(names)
            elif word == ".address_size":
                self.next()
                module.address_size = self.integer(64, 64)
            elif word in (".loc", ".file"):
                line = self.line()
                while self.peek() and self.line() == line:
                    self.next()
            elif word == ".section":
                while self.peek() != "{":
                    self.next()
                self.skip_braces()
            elif word in _IGNORED:
                self.skip_statement()
            else:
                self._declaration(module)
        return module

    def _known(self, why_not: str | None) -> str:
        """The next word, unless there is a reason against it."""
        if why_not is not None:
            raise self.error(why_not)
        return self.next()

    def _new(self, name: str, line: int) -> None:
        if name in self._names:
            raise self.error(f"{name} is declared twice", line)
        self._names.add(name)

    def _declaration(self, module: Module) -> None:
        extern = False
        while self.peek() in _LINKAGE:
            extern |= self.next() == ".extern"
        word = self.peek()
        if word in (".entry", ".func"):
            function = self._function()
            if function is not None:
                self._new(function.name, function.line)
                module.functions[function.name] = function
        elif word[1:] in _SPACES[1:]:
            found = self._variables(extern)
            for variable in found:
                self._new(variable.name, variable.line)
            module.variables.extend(found)
        else:
            raise self.error(f"expected a directive, found {word!r}")

    def _function(self) -> Function | None:
        entry = self.next() == ".entry"
        results: list[Variable] = []
        self.accept(".noreturn")
        if not entry and self.peek() == "(":
            results = self._parameters()
        line = self.line()
        function = Function(self.next(), entry, line, results=results)
        if self.peek() == "(":
            function.parameters = self._parameters()
        while self.peek().startswith("."):
            name = self.next()[1:]
            values: list[int] = []
            while self.peek()[:1].isdigit():
                values.append(self.integer(0, (1 << 31) - 1))
                self.accept(",")
            if name in ("reqntid", "maxntid", "reqnctapercluster", "maxnreg") and not 1 <= len(values) <= 3:
                raise self.error(f".{name} has {len(values)} numbers; wanted 1 to 3")
            function.directives[name] = tuple(values)
        if self.accept(";"):
            return None
        self.expect("{")
        _Body(self, function).parse()
        return function

    def _parameters(self) -> list[Variable]:
        self.expect("(")
        found: list[Variable] = []
        while not self.accept(")"):
            line = self.line()
            found.extend(self._variables(False, parameter=True))
            if found[-1].name in {p.name for p in found[:-1]}:
                raise self.error(f"parameter {found[-1].name} is declared twice", line)
            self.accept(",")
        return found

    def _variables(self, extern: bool, parameter: bool = False) -> list[Variable]:
        """`.space [.align n] [.vN] .type name[sizes] [= initial], ... ;` (one, with no semicolon, for a parameter)."""
        space = self.next()[1:]
        align, count, kind = 0, 1, ""
        while self.peek().startswith("."):
            word = self.next()[1:]
            if word == "align":
                align = self._alignment()
            elif word in ("v2", "v4", "v8"):
                count = int(word[1:])
            elif word == "ptr":
                while self.peek() in (".global", ".shared", ".const", ".local", ".align"):
                    if self.next() == ".align":
                        self._alignment()
            elif word != "attribute":
                kind = word
        width = self._bits(kind) // 8
        if width not in (1, 2, 4, 8, 16):
            raise self.error(f"variables of type .{kind} are not modelled")
        found: list[Variable] = []
        while True:
            line, name = self.line(), self.next()
            size, sized = width * count, True
            while self.accept("["):
                if self.accept("]"):
                    sized = False
                else:
                    size *= self.integer(0, limits.MOST_VARIABLE)
                    self.expect("]")
            if size > limits.MOST_VARIABLE:
                raise self.error(f"{name} has {size} bytes; no memory holds more than {limits.MOST_VARIABLE}")
            initial: tuple[int | Symbol, ...] = ()
            if self.accept("="):
                initial = tuple(self._initial())
                size = size if sized else width * len(initial)
                sized = True
                if width * len(initial) > size:
                    raise self.error(f"{name} has {size} bytes and {len(initial)} values of {width}")
            found.append(Variable(name, space, kind, size if sized else 0, align or max(1, width * count), extern, initial, line))
            if parameter:
                return found
            if self.accept(";"):
                return found
            self.expect(",")

    def _alignment(self) -> int:
        value = self.integer(1, limits.MOST_ALIGNMENT)
        if value & (value - 1):
            self.back()
            raise self.error(f"alignment {value} is no power of two")
        return value

    def _bits(self, kind: str) -> int:
        """Width of a type, in an error that names the line."""
        try:
            return type_bits(kind)
        except ValueError as error:
            raise self.error(str(error)) from None

    def _initial(self) -> list[int | Symbol]:
        if self.accept("{"):
            found: list[int | Symbol] = []
            while not self.accept("}"):
                found.extend(self._initial())
                self.accept(",")
            return found
        word = self.peek()
        if word == "generic":
            self.next()
            self.expect("(")
            inner = self._initial()
            self.expect(")")
            return inner
        operand = self.operand()
        if isinstance(operand, Immediate):
            return [operand.value]
        if isinstance(operand, Symbol):
            return [operand]
        raise self.error(f"{word!r} cannot initialise a variable")

    # Operands

    def operand(self) -> PtxOperand:
        word = self.peek()
        if word[:1] == "%" and self.peek(1) in (",", ";", "}"):  # most operands
            self.next()
            return register(word)
        if word == "{":
            return Vector(self._list("{", "}"))
        if word == "(":
            return Arguments(self._list("(", ")"))
        if word == "[":
            return self._address()
        if word == "!":
            self.next()
            return Negated(Register(self.next()))
        if word == "-" or word[:1].isdigit():
            return self._literal()
        if not _NAME.match(word):
            raise self.error(f"expected an operand, found {word!r}")
        self.next()
        first: PtxOperand = register(word) if word.startswith("%") or word == "_" else Symbol(word)
        if self.accept("|"):
            return Pair(first, self.operand())
        if isinstance(first, Symbol) and self.peek() in "+-" and self.peek():
            return Symbol(word, self._offset())
        return first

    def _list(self, opening: str, closing: str) -> tuple[PtxOperand, ...]:
        self.expect(opening)
        found: list[PtxOperand] = []
        while not self.accept(closing):
            found.append(self.operand())
            if not self.accept(",") and self.peek() != closing:
                raise self.error(f"expected ',' or {closing!r}, found {self.peek()!r}")
        return tuple(found)

    def _offset(self) -> int:
        total = 0
        while self.peek() in ("+", "-"):
            total += self.integer() if self.next() == "+" else -self.integer()
        return total

    def _address(self) -> Address:
        self.expect("[")
        base = self._literal() if self.peek()[:1].isdigit() else self._named(self.next())
        offset = self._offset()
        coordinates: tuple[PtxOperand, ...] = ()
        if self.accept(","):
            inner = self.operand()
            coordinates = inner.elements if isinstance(inner, Vector) else (inner,)
        self.expect("]")
        return Address(base, offset, coordinates)

    def _named(self, word: str) -> Register | Symbol:
        return register(word) if word.startswith("%") else Symbol(word)

    def _literal(self) -> Immediate:
        sign = -1 if self.accept("-") else 1
        word = self.next()
        if word[:2] in ("0f", "0F"):
            return Immediate(int(word[2:], 16), 32)
        if word[:2] in ("0d", "0D"):
            return Immediate(int(word[2:], 16), 64)
        try:
            return Immediate(sign * int(word.rstrip("U"), 0))
        except ValueError:
            raise self.error(f"literal {word!r} is not supported; write floats as 0f... or 0d...") from None


@functools.lru_cache(maxsize=1 << 15)
def _plain_operand(text: str) -> PtxOperand:
    """Of one text one object: a kernel names each of its registers many times."""
    return _Parser(text).operand()


class _Body:
    """The braces of one function, with nested scopes whose names are made unique."""

    def __init__(self, parser: _Parser, function: Function) -> None:
        self._p = parser
        self._f = function
        self._scopes: list[tuple[BodyItem, Scope]] = []

    def parse(self) -> None:
        p, scope, count = self._p, Scope(None, ""), 0
        while True:
            word = p.peek()
            if p.accept("}"):
                if scope.parent is None:
                    break
                scope = scope.parent
            elif p.accept("{"):
                count += 1
                scope = Scope(scope, f"@{count}")
                if scope.depth > limits.DEEPEST:
                    raise p.error(f"more than {limits.DEEPEST} braces within braces")
            elif word == ".reg":
                self._registers(scope)
            elif word[1:] in _SPACES[1:] and word.startswith("."):
                for v in p._variables(False):
                    name = self._declare(scope, v.name, v.line)
                    self._f.variables.append(replace(v, name=name))
            elif word == ".loc":
                line = p.line()
                while p.line() == line and p.peek() not in "{}":
                    p.next()
            elif word in _IGNORED:
                p.skip_statement()
            elif p.peek(1) == ":":
                self._label(scope)
            else:
                self._add(self._instruction(), scope)
        self._f.body = [renamed(item, scope) for item, scope in self._scopes]
        self._check_end()

    def _check_end(self) -> None:
        """Control must not run out of the body."""
        last = next((i for i in reversed(self._f.body) if not isinstance(i, BranchTargets)), None)
        ends = isinstance(last, Instruction) and last.predicate is None and last.parts[0] in _ENDS
        if not ends:
            raise self._p.error(f"the body of {self._f.name} goes on past its end; wanted a ret, exit, trap or branch there",
                                self._f.line if last is None else last.line)

    def _declare(self, scope: Scope, name: str, line: int) -> str:
        if scope.declares(name):
            raise self._p.error(f"{name} is declared twice", line)
        return scope.declare(name)

    def _add(self, item: BodyItem, scope: Scope) -> None:
        self._scopes.append((item, scope))

    def _label(self, scope: Scope) -> None:
        p = self._p
        line, name = p.line(), p.next()
        p.expect(":")
        if p.accept(".branchtargets"):
            labels = [p.next()]
            while p.accept(","):
                labels.append(p.next())
            p.expect(";")
            self._add(BranchTargets(self._declare(scope, name, line), tuple(labels), line), scope)
        elif p.peek() == ".callprototype":
            p.skip_statement()
        else:
            self._add(Label(self._declare(scope, name, line), line), scope)

    def _registers(self, scope: Scope) -> None:
        p = self._p
        p.next()
        kind = p.next()[1:]
        if p._bits(kind) > 64:
            raise p.error(f"registers of type .{kind} are not modelled")
        while True:
            line, name = p.line(), p.next()
            names = [name]
            if p.accept("<"):
                names = [f"{name}{i}" for i in range(p.integer(0, limits.MOST_REGISTERS))]
                p.expect(">")
            if len(self._f.registers) + len(names) > limits.MOST_REGISTERS:
                raise p.error(f"{self._f.name} declares more than {limits.MOST_REGISTERS} registers", line)
            for each in names:
                self._f.registers[self._declare(scope, each, line)] = kind
            if p.accept(";"):
                return
            p.expect(",")

    def _instruction(self) -> Instruction:
        p = self._p
        line = p.line()
        predicate, negated = None, False
        if p.accept("@"):
            negated = p.accept("!")
            predicate = Register(p.next())
        opcode = p.next()
        if not "a" <= opcode[:1] <= "z":
            p.back()
            raise p.error(f"expected an instruction, found {opcode!r}")
        if opcode.endswith(";"):
            opcode, operands_text = opcode[:-1].split(None, 1)
            plain = tuple(_plain_operand(each.strip()) for each in operands_text.split(","))
            return Instruction(opcode, plain, line, p.text(line), predicate, negated)
        operands: list[PtxOperand] = []
        while not p.accept(";"):
            operands.append(p.operand())
            if not p.accept(",") and p.peek() != ";":
                raise p.error(f"expected ',' or ';', found {p.peek()!r}")
        return Instruction(opcode, tuple(operands), line, p.text(line), predicate, negated)
