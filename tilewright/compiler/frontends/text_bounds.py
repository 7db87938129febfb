"""Bounds of MLIR text, checked before the parser sees it: its recursion overflows the stack where text nests too deeply.

Linear in the length of the text. Strings and comments are skipped, so blobs of weights (`dense<"0x...">`, the `dialect_resources`
at the end of a file) cost next to nothing. What is within the bounds may still be no MLIR: that is for the parser to say.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tilewright.runtime.errors import IngestError

NESTING = 256  # brackets of all kinds, aliases within aliases, minus signs in a row; what exporters write stays below 60
RANK = 64  # of a shaped type: as many as NumPy has
DIGITS = 1000  # of a number
RESULTS = 6  # digits of the number of one of an operation's results: the parser makes room for as many
MAP = 2000  # characters of an affine map or set
EXPANDED = 1 << 27  # characters of aliases with those that they name written out, as the printer writes them

_STRING = r'"(?:[^"\\\n]++|\\.)*+"'
_SKIPPED = rf"{_STRING}|//[^\n]*+"
_BYTES = re.compile(r"\\[89a-fA-F][\da-fA-F]")
_TOKEN = re.compile(rf"(?P<define>^[#!][\w$.-]++\s*+=(?!=))|(?P<alias>[#!][\w$.-]++)|(?P<open>[(\[{{<])"
                    rf"|(?P<close>[)\]}}]|(?<!-)>(?!=))|{_SKIPPED}", re.MULTILINE)
_ID = r"%[\w$.-]++"
_NAME = re.compile(_ID)
_PLACE = re.compile(rf"(?P<results>{_ID}(?::\d++)?(?:\s*+,\s*+{_ID}(?::\d++)?)*+\s*+=(?!=))|(?P<name>{_ID})(?P<typed>\s*+:)?"
                    r"|(?P<arguments>(?:(?<=\s)|[\^@][\w$.-]++\s*+)\()|(?P<open>\()|(?P<close>\))|(?P<function>\bfunc\.func\b)")
_MINUSES = re.compile(r"-(?:\s*+-)++")


def _written(pattern: str) -> re.Pattern[str]:
    """Of the parser's letters: `\\s` is what it skips, and digits are 0 to 9."""
    return re.compile(pattern.replace(r"\s", r"[ \t\r\n]"), re.ASCII)


_TOO_LONG = (
    (_written(rf"<(?:\s*+[\d?]++\s*+x){{{RANK + 1}}}"), f"a type of more than {RANK} axes"),
    (_written(rf"(?<!\d)\d{{{DIGITS + 1}}}|0x[\da-fA-F]{{{DIGITS + 1}}}"), f"a number of more than {DIGITS} digits"),
    (_written(rf"affine_(?:map|set)\s*+<(?:[^>]|(?<=-)>|>(?==)){{{MAP + 1}}}"), f"an affine map of more than {MAP} characters"),
    (_written(rf"%[\w$.-]++\s*+[:#]\s*+0*+\d{{{RESULTS + 1}}}"), f"a number of results of more than {RESULTS} digits"),
    # where these lists are others, upstream's parser and verifier of the operations read a null pointer
    (_written(r"(?:\)(?:\s|\"\")*+(?:permutation|dimensions)(?:\s|\"\")*+=|\b(?:permutation|dimensions)\s*+=(?=\s*+\[))"
              r"(?!\s*+\[\s*+(?:-?\d{1,18}+\s*+(?:,\s*+-?\d{1,18}+\s*+)*+)?\])"),
     "a permutation or dimensions that are no list of integers"),
    # the number that marks an operand's place, where no operand stands
    (_written(r"\btensor\.concat\s++dim\s*+\(\s*+-|(?<![\w.])dim\s*+=\s*+-\s*+\d++\s*+:\s*+i64"), "an axis below zero"),
    (_written(r"_shape\s++%[\w$.#-]++\s*+\[\s*+(?:\[[^\[\]]*\]\s*+,\s*+)*+\[\s*+\]"), "a group of no axes"),
    (_written(r"\b(?:low|high|inner_tiles\s*+=)\s*+\[[^\]]*-\s*+0*+(?:9223372036854775808|x0*+8000000000000000)(?![\da-fA-F])"),
     "the least i64 as an extent"),
    (_written(r"\blinalg\.\w*matmul\w*+\s++indexing_maps\s*+=\s*+\[(?!\s*+(?:(?:affine_map<[^->]*+->\s*+\((?!\s*+\))[^>]*+>"
                r"|#[\w$.-]++)\s*+(?:,\s*+|(?=\]))){3}\])"), "a matmul whose indexing maps are not three with results"),
    (_written(r"\biterator_types\s*+=\s*+\[(?!\s*+(?:(?:\"\"|#linalg\.iterator_type<\w++>)\s*+(?:,\s*+|(?=\])))*+\])"),
     "iterator types that are no list of names"),
)
_ELEMENTS = _written(r"\btensor\.from_elements\b[^<]*<(?P<extents>(?:\s*+\d++\s*+x)++)")


@dataclass(frozen=True)
class _Size:
    """Of an alias with all that it names: nesting, and characters."""

    depth: int = 0
    characters: int = 0


def check_bounds(text: str, where: str) -> None:
    """IngestError, with the line, for text that the parser or the printer would not survive. where: names the text."""
    plain = re.sub(_SKIPPED, '""', text)  # neither holds the end of a line, so lines keep their numbers
    for pattern, what in _TOO_LONG:
        if (found := pattern.search(plain)) is not None:
            raise _refused(where, plain, found.start(), what)
    for run in _MINUSES.finditer(plain):
        if run[0].count("-") > NESTING:
            raise _refused(where, plain, run.start(), f"more than {NESTING} minus signs in a row")
    for made in _ELEMENTS.finditer(plain):
        if math.prod(map(int, re.findall(r"\d+", made["extents"]))) > len(plain):
            raise _refused(where, plain, made.start(), "tensor.from_elements of more elements than the text has characters")
    _check_nesting(text, where)
    _check_order(plain, where)
    if _BYTES.search(text):
        _check_strings(text, where)


def _check_order(plain: str, where: str) -> None:
    """That values come before what reads them: where a value of a region is read by one before it, and either is no valid MLIR,
    the parser writes to memory that it has freed. Every function has names of its own."""
    read: dict[str, int] = {}
    known: set[str] = set()
    lists = [False]  # of each open parenthesis: may it enclose arguments of a function or a block?
    for token in _PLACE.finditer(plain):
        kind = token.lastgroup
        if kind == "results" or (kind == "typed" and lists[-1]):
            for name in _NAME.findall(token[0]):
                if name in read:
                    raise _refused(where, plain, read[name], f"{name} is read before it is made")
                known.add(name)
        elif kind in ("name", "typed"):
            if token["name"] not in known:
                read.setdefault(token["name"], token.start())
        elif kind == "close":
            lists[1:] = lists[1:-1]
        elif kind == "function":
            read, known, lists = {}, set(), [False]
        else:
            lists.append(kind == "arguments")


def _check_strings(text: str, where: str) -> None:
    """That what is written as bytes is text: the bindings give no other strings."""
    for string in re.finditer(_STRING, text):
        if _BYTES.search(string[0]):
            parts = re.split(r"\\([\da-fA-F]{2})", string[0])  # text and digits in turns
            data = b"".join(bytes.fromhex(p) if i % 2 else p.encode() for i, p in enumerate(parts))
            try:
                data.decode()
            except UnicodeDecodeError:
                line = text.count("\n", 0, string.start()) + 1
                raise IngestError(f"{where}, line {line}: {string[0]} is no text in UTF-8; write the name in UTF-8") from None


def _check_nesting(text: str, where: str) -> None:
    """Of brackets, and of aliases: each is written out wherever it is named."""
    sizes: dict[str, _Size] = {}
    name, start = "", 0
    depth = deepest = characters = 0
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "open":
            depth += 1
            deepest = max(deepest, depth)
        elif kind == "close":
            depth = max(0, depth - 1)
        elif kind == "define" and not depth:
            sizes[name] = _Size(deepest, characters + token.start() - start)
            name, start, deepest, characters = token[0].rstrip("= \t\r\n"), token.end(), 0, 0
        elif kind is not None and (size := sizes.get(token[0].rstrip("= \t\r\n"))) is not None:
            deepest = max(deepest, depth + size.depth + 1)
            characters += 0 if token[0].startswith("#loc") and not name else size.characters
        if deepest > NESTING:
            raise _refused(where, text, token.start(), f"more than {NESTING} brackets or aliases within each other")
        if characters > EXPANDED:
            raise _refused(where, text, token.start(), f"aliases that are more than {EXPANDED} characters written out")


def _refused(where: str, text: str, at: int, what: str) -> IngestError:
    line = text.count("\n", 0, at) + 1
    return IngestError(f"{where}, line {line}: {what}, which the parser of MLIR does not survive; no exporter writes that: "
                       "wanted a model within these bounds, export it again")
