"""PTX text -> Module. Errors name the line."""

from __future__ import annotations

import re
from bisect import bisect_right

from runtime.emulator.findings import EmulatorError
from runtime.emulator.ptx import (
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
    Operand,
    Pair,
    Register,
    Symbol,
    Variable,
    Vector,
)
from runtime.emulator.ptx_scopes import Scope, renamed

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<number>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+\.\d+(?:[eE][-+]?\d+)?|\d+U?)
    |(?P<word>[%$A-Za-z_.](?:[\w$.%]|::)*)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<sign>[{}()\[\],;:@!|<>=+\-])
    |(?P<bad>.)""",
    re.VERBOSE | re.DOTALL,
)
_SPACES = ("reg", "shared", "global", "const", "local", "param")
_LINKAGE = (".visible", ".extern", ".weak", ".common")
_IGNORED = (".loc", ".file", ".pragma", ".alias", ".callprototype", ".noreturn")


def parse_ptx(text: str) -> Module:
    """Parse PTX text. Raises EmulatorError naming line and text where it cannot."""
    return _Parser(text).module()


def type_bits(name: str) -> int:
    """Width in bits of a fundamental type, `pred` is 1."""
    if name == "pred":
        return 1
    digits = re.fullmatch(r"(?:[usbf]|bf|tf|e\dm)(\d+)(x2)?", name)
    if digits is None:
        raise EmulatorError(f"PTX type .{name} is unknown")
    return int(digits[1]) * (2 if digits[2] else 1)


class _Parser:
    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        starts = [0]
        for line in self._lines:
            starts.append(starts[-1] + len(line) + 1)
        self._words: list[str] = []
        self._at: list[int] = []
        number, limit = 1, starts[1]
        for match in _TOKEN.finditer(text):
            if match.lastgroup == "skip":
                continue
            if match.start() >= limit:
                number = bisect_right(starts, match.start())
                limit = starts[number] if number < len(starts) else len(text) + 1
            if match.lastgroup == "bad":
                raise EmulatorError(f"PTX line {number}: unexpected character {match.group()!r}")
            self._words.append(match.group())
            self._at.append(number)
        self._words.append("")
        self._at.append(len(self._lines))
        self._i = 0

    # Tokens

    def _peek(self, ahead: int = 0) -> str:
        return self._words[min(self._i + ahead, len(self._words) - 1)]

    def _next(self) -> str:
        word = self._words[self._i]
        if not word:
            raise self._error("the text ends in the middle of a statement")
        self._i += 1
        return word

    def _accept(self, word: str) -> bool:
        if self._words[self._i] == word:
            self._i += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._error(f"expected {word!r}, found {self._peek()!r}")

    def _error(self, message: str) -> EmulatorError:
        line = self._at[self._i]
        return EmulatorError(f"PTX line {line}: {message}: `{self._text(line)}`")

    def _text(self, line: int) -> str:
        return self._lines[line - 1].strip() if line <= len(self._lines) else ""

    def _skip_statement(self) -> None:
        while self._next() != ";":
            pass

    def _skip_braces(self) -> None:
        self._expect("{")
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self._next(), 0)

    def _integer(self) -> int:
        sign = -1 if self._accept("-") else 1
        word = self._next()
        try:
            return sign * int(word.rstrip("U"), 0)
        except ValueError:
            raise self._error(f"expected an integer, found {word!r}") from None

    # Module scope

    def module(self) -> Module:
        module = Module()
        while self._peek():
            word = self._peek()
            if word == ".version":
                self._next()
                module.version = self._next()
            elif word == ".target":
                self._next()
                names = [self._next()]
                while self._accept(","):
                    names.append(self._next())
                module.target = tuple(names)
            elif word == ".address_size":
                self._next()
                module.address_size = self._integer()
            elif word in (".loc", ".file"):
                line = self._at[self._i]
                while self._peek() and self._at[self._i] == line:
                    self._next()
            elif word == ".section":
                while self._peek() != "{":
                    self._next()
                self._skip_braces()
            elif word in _IGNORED:
                self._skip_statement()
            else:
                self._declaration(module)
        return module

    def _declaration(self, module: Module) -> None:
        extern = False
        while self._peek() in _LINKAGE:
            extern |= self._next() == ".extern"
        word = self._peek()
        if word in (".entry", ".func"):
            function = self._function()
            if function is not None:
                module.functions[function.name] = function
        elif word[1:] in _SPACES[1:]:
            module.variables.extend(self._variables(extern))
        else:
            raise self._error(f"expected a directive, found {word!r}")

    def _function(self) -> Function | None:
        entry = self._next() == ".entry"
        results: list[Variable] = []
        self._accept(".noreturn")
        if not entry and self._peek() == "(":
            results = self._parameters()
        line = self._at[self._i]
        function = Function(self._next(), entry, line, results=results)
        if self._peek() == "(":
            function.parameters = self._parameters()
        while self._peek().startswith("."):
            name = self._next()[1:]
            values: list[int] = []
            while self._peek()[:1].isdigit():
                values.append(self._integer())
                self._accept(",")
            function.directives[name] = tuple(values)
        if self._accept(";"):
            return None
        self._expect("{")
        _Body(self, function).parse()
        return function

    def _parameters(self) -> list[Variable]:
        self._expect("(")
        found: list[Variable] = []
        while not self._accept(")"):
            found.extend(self._variables(False, parameter=True))
            self._accept(",")
        return found

    def _variables(self, extern: bool, parameter: bool = False) -> list[Variable]:
        """`.space [.align n] [.vN] .type name[sizes] [= initial], ... ;` (one, with no semicolon, for a parameter)."""
        space = self._next()[1:]
        align, count, kind = 0, 1, ""
        while self._peek().startswith("."):
            word = self._next()[1:]
            if word == "align":
                align = self._integer()
            elif word in ("v2", "v4", "v8"):
                count = int(word[1:])
            elif word == "ptr":
                while self._peek() in (".global", ".shared", ".const", ".local", ".align"):
                    if self._next() == ".align":
                        self._integer()
            elif word != "attribute":
                kind = word
        width = type_bits(kind) // 8
        found: list[Variable] = []
        while True:
            line, name = self._at[self._i], self._next()
            size, sized = width * count, True
            while self._accept("["):
                if self._accept("]"):
                    sized = False
                else:
                    size *= self._integer()
                    self._expect("]")
            initial: tuple[int | Symbol, ...] = ()
            if self._accept("="):
                initial = tuple(self._initial())
                size = size if sized else width * len(initial)
                sized = True
            found.append(
                Variable(name, space, kind, size if sized else 0, align or max(1, width * count), extern, initial, line)
            )
            if parameter:
                return found
            if self._accept(";"):
                return found
            self._expect(",")

    def _initial(self) -> list[int | Symbol]:
        if self._accept("{"):
            found: list[int | Symbol] = []
            while not self._accept("}"):
                found.extend(self._initial())
                self._accept(",")
            return found
        word = self._peek()
        if word == "generic":
            self._next()
            self._expect("(")
            inner = self._initial()
            self._expect(")")
            return inner
        operand = self.operand()
        if isinstance(operand, Immediate):
            return [operand.value]
        if isinstance(operand, Symbol):
            return [operand]
        raise self._error(f"{word!r} cannot initialise a variable")

    # Operands

    def operand(self) -> Operand:
        word = self._peek()
        if word == "{":
            return Vector(self._list("{", "}"))
        if word == "(":
            return Arguments(self._list("(", ")"))
        if word == "[":
            return self._address()
        if word == "!":
            self._next()
            return Negated(Register(self._next()))
        if word == "-" or word[:1].isdigit():
            return self._literal()
        if not re.match(r"[%$A-Za-z_]", word):
            raise self._error(f"expected an operand, found {word!r}")
        self._next()
        first: Operand = Register(word) if word.startswith("%") or word == "_" else Symbol(word)
        if self._accept("|"):
            return Pair(first, self.operand())
        if isinstance(first, Symbol) and self._peek() in "+-" and self._peek():
            return Symbol(word, self._offset())
        return first

    def _list(self, opening: str, closing: str) -> tuple[Operand, ...]:
        self._expect(opening)
        found: list[Operand] = []
        while not self._accept(closing):
            found.append(self.operand())
            if not self._accept(",") and self._peek() != closing:
                raise self._error(f"expected ',' or {closing!r}, found {self._peek()!r}")
        return tuple(found)

    def _offset(self) -> int:
        total = 0
        while self._peek() in ("+", "-"):
            total += self._integer() if self._next() == "+" else -self._integer()
        return total

    def _address(self) -> Address:
        self._expect("[")
        base = self._literal() if self._peek()[:1].isdigit() else self._named(self._next())
        offset = self._offset()
        coordinates: tuple[Operand, ...] = ()
        if self._accept(","):
            inner = self.operand()
            coordinates = inner.elements if isinstance(inner, Vector) else (inner,)
        self._expect("]")
        return Address(base, offset, coordinates)

    def _named(self, word: str) -> Register | Symbol:
        return Register(word) if word.startswith("%") else Symbol(word)

    def _literal(self) -> Immediate:
        sign = -1 if self._accept("-") else 1
        word = self._next()
        if word[:2] in ("0f", "0F"):
            return Immediate(int(word[2:], 16), 32)
        if word[:2] in ("0d", "0D"):
            return Immediate(int(word[2:], 16), 64)
        try:
            return Immediate(sign * int(word.rstrip("U"), 0))
        except ValueError:
            raise self._error(f"literal {word!r} is not supported; write floats as 0f... or 0d...") from None


class _Body:
    """The braces of one function, with nested scopes whose names are made unique."""

    def __init__(self, parser: _Parser, function: Function) -> None:
        self._p = parser
        self._f = function
        self._scopes: list[tuple[BodyItem, Scope]] = []

    def parse(self) -> None:
        p, scope, count = self._p, Scope(None, ""), 0
        while True:
            word = p._peek()
            if p._accept("}"):
                if scope.parent is None:
                    break
                scope = scope.parent
            elif p._accept("{"):
                count += 1
                scope = Scope(scope, f"@{count}")
            elif word == ".reg":
                self._registers(scope)
            elif word[1:] in _SPACES[1:] and word.startswith("."):
                for v in p._variables(False):
                    self._f.variables.append(
                        Variable(scope.declare(v.name), v.space, v.type, v.size, v.align, v.extern, v.initial, v.line)
                    )
            elif word == ".loc":
                line = p._at[p._i]
                while p._at[p._i] == line and p._peek() not in "{}":
                    p._next()
            elif word in _IGNORED:
                p._skip_statement()
            elif p._peek(1) == ":":
                self._label(scope)
            else:
                self._add(self._instruction(), scope)
        self._f.body = [renamed(item, scope) for item, scope in self._scopes]

    def _add(self, item: BodyItem, scope: Scope) -> None:
        self._scopes.append((item, scope))

    def _label(self, scope: Scope) -> None:
        p = self._p
        line, name = p._at[p._i], p._next()
        p._expect(":")
        if p._accept(".branchtargets"):
            labels = [p._next()]
            while p._accept(","):
                labels.append(p._next())
            p._expect(";")
            self._add(BranchTargets(scope.declare(name), tuple(labels), line), scope)
        elif p._peek() == ".callprototype":
            p._skip_statement()
        else:
            self._add(Label(scope.declare(name), line), scope)

    def _registers(self, scope: Scope) -> None:
        p = self._p
        p._next()
        kind = p._next()[1:]
        type_bits(kind)
        while True:
            name = p._next()
            if p._accept("<"):
                for i in range(p._integer()):
                    self._f.registers[scope.declare(f"{name}{i}")] = kind
                p._expect(">")
            else:
                self._f.registers[scope.declare(name)] = kind
            if p._accept(";"):
                return
            p._expect(",")

    def _instruction(self) -> Instruction:
        p = self._p
        line = p._at[p._i]
        predicate, negated = None, False
        if p._accept("@"):
            negated = p._accept("!")
            predicate = Register(p._next())
        opcode = p._next()
        if not re.match(r"[a-z]", opcode):
            p._i -= 1
            raise p._error(f"expected an instruction, found {opcode!r}")
        operands: list[Operand] = []
        while not p._accept(";"):
            operands.append(p.operand())
            if not p._accept(",") and p._peek() != ";":
                raise p._error(f"expected ',' or ';', found {p._peek()!r}")
        return Instruction(opcode, tuple(operands), line, p._text(line), predicate, negated)
