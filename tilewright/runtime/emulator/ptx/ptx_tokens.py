"""PTX text as words with line numbers."""

from __future__ import annotations

import re
from bisect import bisect_right

from tilewright.runtime.emulator.machine.findings import EmulatorError

_PLAIN = r"(?:%[\w.]+|\$[\w$]+|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0|-?[1-9]\d*|\[%\w+(?:\+-?(?:0|[1-9]\d*))?\])"
_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<plain>[a-z](?:[\w.]|::)*[ \t]+"""
    + _PLAIN
    + r"(?:,[ \t]*"
    + _PLAIN
    + r""")*;)
    |(?P<number>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+\.\d+(?:[eE][-+]?\d+)?|\d+U?)
    |(?P<word>[%$A-Za-z_.](?:[\w$.%]|::)*)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<sign>[{}()\[\],;:@!|<>=+\-])
    |(?P<bad>.)""",
    re.VERBOSE | re.DOTALL,
)


_SHOWN = 160  # characters of a line that travel with its instructions


class Tokens:
    """Words of a PTX text with their lines, and errors that name the line. An instruction of plain operands (registers, labels,
    numbers, addresses of a register), as most are, is one word with the semicolon that ends it."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._shown: dict[int, str] = {}
        starts = [0]
        for line in self._lines:
            starts.append(starts[-1] + len(line) + 1)
        self._words: list[str] = []
        self._at: list[int] = []
        number, limit = 1, starts[1]
        words, at = self._words.append, self._at.append
        for match in _TOKEN.finditer(text):
            kind, start = match.lastgroup, match.start()
            if kind == "skip":
                continue
            if start >= limit:
                number = bisect_right(starts, start)
                limit = starts[number] if number < len(starts) else len(text) + 1
            if kind == "bad":
                raise EmulatorError(f"PTX line {number}: unexpected character {match.group()!r}")
            words(match.group())
            at(number)
        self._words.append("")
        self._at.append(len(self._lines))
        self._i = 0

    def peek(self, ahead: int = 0) -> str:
        return self._words[min(self._i + ahead, len(self._words) - 1)]

    def next(self) -> str:
        word = self._words[self._i]
        if not word:
            raise self.error("the text ends in the middle of a statement")
        self._i += 1
        return word

    def accept(self, word: str) -> bool:
        if self._words[self._i] == word:
            self._i += 1
            return True
        return False

    def expect(self, word: str) -> None:
        if not self.accept(word):
            raise self.error(f"expected {word!r}, found {self.peek()!r}")

    def error(self, message: str, line: int = 0) -> EmulatorError:
        """line: where it is not that of the next word."""
        line = line or self._at[self._i]
        return EmulatorError(f"PTX line {line}: {message}: `{self.text(line)}`")

    def text(self, line: int) -> str:
        """The line, or the beginning of a long one."""
        if line not in self._shown:
            whole = self._lines[line - 1].strip() if line <= len(self._lines) else ""
            self._shown[line] = whole if len(whole) <= _SHOWN else f"{whole[:_SHOWN]} ..."
        return self._shown[line]

    def skip_statement(self) -> None:
        while not self.next().endswith(";"):
            pass

    def skip_braces(self) -> None:
        self.expect("{")
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self.next(), 0)

    def integer(self, least: int = -(1 << 63), most: int = 1 << 64) -> int:
        """A whole number within bounds."""
        value = self._integer()
        if not least <= value <= most:
            self.back()
            raise self.error(f"{value} is not from {least} to {most}")
        return value

    def _integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        word = self.next()
        try:
            return sign * int(word.rstrip("U"), 0)
        except ValueError:
            raise self.error(f"expected an integer, found {word!r}") from None

    def line(self) -> int:
        """The line of the next word."""
        return self._at[self._i]

    def back(self) -> None:
        """Give the last word back."""
        self._i -= 1
