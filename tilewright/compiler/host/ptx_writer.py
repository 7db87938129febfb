"""PtxWriter: PTX of 64-bit integers as text, for the small kernels around those of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tilewright.runtime.shape import Expr

HEAD = """.version 7.0
.target sm_80
.address_size 64
"""


class Word:
    """A register, or a number that is known. Sums and products of numbers that are known emit nothing."""

    def __init__(self, writer: PtxWriter, text: str, number: int | None = None) -> None:
        self.writer, self.text, self.number = writer, text, number

    def __add__(self, other: Word) -> Word:
        if self.number is not None and other.number is not None:
            return self.writer.number(self.number + other.number)
        if 0 in (self.number, other.number):
            return other if self.number == 0 else self
        return self.writer.made("add.s64", self, other)

    def __mul__(self, other: Word) -> Word:
        if self.number is not None and other.number is not None:
            return self.writer.number(self.number * other.number)
        if 0 in (self.number, other.number):
            return self.writer.number(0)
        if 1 in (self.number, other.number):
            return other if self.number == 1 else self
        return self.writer.made("mul.lo.s64", self, other)


class PtxWriter:
    """Lines of one entry whose parameters are 8-byte words. Registers are written as often as is wanted."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._shared: list[str] = []
        self._registers = self._conditions = self._labels = 0

    def entry(self, name: str, parameters: int, threads: int) -> str:
        """The module."""
        listed = ", ".join(f".param .u64 p{i}" for i in range(parameters))
        declared = "".join(self._shared)
        declared += f"  .reg .b32 %r<2>;\n  .reg .b64 %d<{self._registers + 1}>;\n  .reg .pred %q<{self._conditions + 1}>;\n"
        body = "\n".join(self._lines)
        return f"{HEAD}.visible .entry {name}({listed})\n.reqntid {threads}, 1, 1\n{{\n{declared}{body}\n  ret;\n}}\n"

    # -- values

    def number(self, value: int) -> Word:
        return Word(self, str(value), value)

    def register(self, value: Word | None = None) -> Word:
        """A new one, which is `value` now."""
        self._registers += 1
        made = Word(self, f"%d{self._registers}")
        if value is not None:
            self.put(made, value)
        return made

    def put(self, target: Word, value: Word) -> None:
        self.line(f"mov.u64 {target.text}, {value.text};")

    def made(self, op: str, *operands: Word) -> Word:
        found = self.register()
        self.line(f"{op} {found.text}, {', '.join(o.text for o in operands)};")
        return found

    def parameter(self, number: int) -> Word:
        found = self.register()
        self.line(f"ld.param.u64 {found.text}, [p{number}];")
        return found

    def special(self, name: str) -> Word:
        """A special register of 32 bits."""
        self.line(f"mov.u32 %r0, %{name};")
        found = self.register()
        self.line(f"cvt.u64.u32 {found.text}, %r0;")
        return found

    def shared(self, name: str, words: int) -> Word:
        """The address of so many words of a block's shared memory."""
        self._shared.append(f"  .shared .align 8 .b8 {name}[{8 * words}];\n")
        found = self.register()
        self.line(f"mov.u64 {found.text}, {name};")
        return found

    def load(self, address: Word, offset: int = 0, space: str = "global") -> Word:
        found = self.register()
        self.line(f"ld.{space}.u64 {found.text}, [{address.text}+{offset}];")
        return found

    def store(self, value: Word, address: Word, offset: int = 0, space: str = "global") -> None:
        self.line(f"st.{space}.u64 [{address.text}+{offset}], {self.register(value).text};")

    def add_to(self, address: Word, value: Word, offset: int = 0, space: str = "global") -> None:
        """Add to a word that other threads add to."""
        self.line(f"red.{space}.add.u64 [{address.text}+{offset}], {self.register(value).text};")

    def expr(self, expr: Expr, env: Mapping[str, Word]) -> Word:
        """A size over words; quotients and remainders floor."""
        return expr.fold(self.number, env.__getitem__, self._apply)

    def _apply(self, op: str, a: Word, b: Word) -> Word:
        if a.number is not None:
            a = self.register(a)
        if op in ("min", "max"):
            return self.made(f"{op}.s64", a, b)
        power = b.number is not None and b.number > 0 and b.number & (b.number - 1) == 0
        if power and b.number is not None:
            if op == "mod":
                return self.made("and.b64", a, self.number(b.number - 1))
            shift = b.number.bit_length() - 1
            found = self.register()
            self.line(f"shr.s64 {found.text}, {a.text}, {shift};")
            return found
        quotient = self.made("div.s64", a, b)
        left = self.made("sub.s64", a, self.register(quotient * b))
        wrong = self.condition("lt", self.made("xor.b64", left, b), self.number(0))
        not_whole = self.condition("ne", left, self.number(0))
        self.line(f"and.pred {wrong}, {wrong}, {not_whole};")
        if op == "mod":
            return self.chosen(wrong, self.made("add.s64", left, b), left)
        return self.chosen(wrong, self.made("sub.s64", quotient, self.number(1)), quotient)

    def condition(self, comparison: str, a: Word, b: Word) -> str:
        """A predicate: a eq, ne, lt, le, gt or ge b."""
        self._conditions += 1
        first = self.register(a) if a.number is not None else a
        self.line(f"setp.{comparison}.s64 %q{self._conditions}, {first.text}, {b.text};")
        return f"%q{self._conditions}"

    def chosen(self, condition: str, yes: Word, no: Word) -> Word:
        found = self.register()
        self.line(f"selp.b64 {found.text}, {yes.text}, {no.text}, {condition};")
        return found

    # -- control

    def line(self, text: str) -> None:
        self._lines.append("  " + text)

    def barrier(self) -> None:
        self.line("bar.sync 0;")

    def label(self) -> str:
        self._labels += 1
        return f"L{self._labels}"

    def place(self, label: str) -> None:
        self._lines.append(f"{label}:")

    def unless(self, condition: str, body: Callable[[], None]) -> None:
        """`body` where the condition does not hold."""
        end = self.label()
        self.line(f"@{condition} bra {end};")
        body()
        self.place(end)

    def branch(self, condition: str, yes: Callable[[], None], no: Callable[[], None]) -> None:
        other, end = self.label(), self.label()
        self.line(f"@!{condition} bra {other};")
        yes()
        self.line(f"bra {end};")
        self.place(other)
        no()
        self.place(end)

    @contextmanager
    def counted(self, begin: Word, end: Word, step: int) -> Iterator[Word]:
        """The body for each number from `begin` on, below `end`."""
        number = self.register(begin)
        again, out = self.label(), self.label()
        self.place(again)
        self.line(f"@{self.condition('ge', number, end)} bra {out};")
        yield number
        self.line(f"add.s64 {number.text}, {number.text}, {step};")
        self.line(f"bra {again};")
        self.place(out)
