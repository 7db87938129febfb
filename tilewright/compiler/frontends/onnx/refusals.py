"""Operators that are not compiled, by the reason and the remedy."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.compiler.frontends.onnx.context import Context

_RANDOM = ("random numbers are not compiled", "Make them outside and pass them as an input")
_SHAPES = (
    "the shape of its result depends on data",
    "Return a result of full size and a count, or do this step outside of the model",
)
_SEQUENCES = ("sequences and optional values are not compiled", "Give every tensor an input or output of its own")
_STRINGS = ("strings are not compiled", "Do this step outside of the model")
_REFUSED: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"), _RANDOM
    ),
    **dict.fromkeys(("NonZero", "Unique", "Compress", "NonMaxSuppression"), _SHAPES),
    **dict.fromkeys(
        (
            "SequenceAt",
            "SequenceConstruct",
            "SequenceEmpty",
            "SequenceErase",
            "SequenceInsert",
            "SequenceLength",
            "SequenceMap",
            "SplitToSequence",
            "ConcatFromSequence",
            "Optional",
            "OptionalGetElement",
            "OptionalHasElement",
        ),
        _SEQUENCES,
    ),
    **dict.fromkeys(("StringNormalizer", "StringConcat", "StringSplit", "RegexFullMatch", "TfIdfVectorizer"), _STRINGS),
    "ImageDecoder": ("the extents of an encoded image depend on data", "Decode images outside of the model"),
}


def refuse_known(context: Context) -> None:
    """IngestError for an operator that is refused whatever its inputs are."""
    if context.node.domain in ("", "ai.onnx") and context.node.op_type in _REFUSED:
        raise context.refused(*_REFUSED[context.node.op_type])
