"""Where an operation stands in the model's source, for messages."""

from __future__ import annotations

from tilewright.passes.mlir import ir


def where(op: ir.Operation) -> str:
    """The operation's source location, as MLIR prints it without the wrapping loc()."""
    text = str(op.location)
    return text[4:-1] if text.startswith("loc(") and text.endswith(")") else text
