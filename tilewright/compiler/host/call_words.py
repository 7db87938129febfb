"""Where emitted code finds the words that the runtime fills in when a function is loaded (runtime/host/native_call.py)."""

from __future__ import annotations

from tilewright.runtime.call.python_abi import ARRAY_WORDS, MORE_WORDS, WORDS
from tilewright.runtime.host.native_call import ARRAY_TABLE, JAGGED_TABLE, JAGGED_WORDS, MORE_TABLE, TABLE

_TABLES = ((TABLE, WORDS), (MORE_TABLE, MORE_WORDS), (ARRAY_TABLE, ARRAY_WORDS), (JAGGED_TABLE, JAGGED_WORDS))
_PLACES = {name: (table, number) for table, words in _TABLES for number, name in enumerate(words)}


def word_at(name: str) -> str:
    """The address of a word, as a constant of LLVM IR."""
    table, number = _PLACES[name]
    return f"getelementptr (i8, ptr @{table}, i64 {8 * number})"


def word(name: str) -> str:
    """The instruction that reads a word, which is an address."""
    return f"load ptr, ptr {word_at(name)}"
