"""Text that MLIR's recursive parser does not survive is answered before the parser sees it; models are not mistaken for it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.compiler.frontends import text_bounds
from tilewright.compiler.frontends.ingest import ingest
from tilewright.compiler.frontends.text_bounds import check_bounds
from tilewright.runtime.errors import IngestError, TilewrightError

ROOT = Path(__file__).resolve().parents[2]
DEEP = 100_000


def model(body: str = "", attribute: str = "1") -> str:
    return (f"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> attributes {{a.x = {attribute}}} {{\n{body}\n"
            "  return %x : tensor<4xf32>\n}\n")


def aliases(count: int, body: str) -> str:
    """Each is written in terms of the one before it."""
    return "#a0 = [1]\n" + "".join(f"#a{i} = {body.format(i - 1)}\n" for i in range(1, count)) + model(attribute=f"#a{count - 1}")


DEADLY = {
    "nested regions": (model('"a.b"() ({\n' * 20_000 + "}) : () -> ()\n" * 20_000), 129),
    "nested arrays": (model(attribute="[" * DEEP + "]" * DEEP), 1),
    "nested dictionaries": (model(attribute="{a = " * DEEP + "1" + "}" * DEEP), 1),
    "nested types": (model('%0 = "a.b"() : () -> ' + "tuple<" * DEEP + "i1" + ">" * DEEP), 2),
    "nested literals": (model(attribute="dense<" + "[" * DEEP + "1" + "]" * DEEP + "> : tensor<1xi1>"), 1),
    "nested locations": (model() + "#loc = loc(" + "fused[" * DEEP + "unknown" + "]" * DEEP + ")\n", 5),
    "nested affine expressions": ("#m = affine_map<(d0) -> (" + "(" * DEEP + "d0" + ")" * DEEP + ")>\n" + model(), 1),
    "a long affine expression": ("#m = affine_map<(d0, d1) -> (" + "d0 + d1 floordiv 3 + " * DEEP + "d0)>\n" + model(), 1),
    "minus signs": ("\n#m = affine_map<(d0) -> (" + "- " * 900 + "d0)>\n" + model(), 2),
    "aliases within aliases": (aliases(20_000, "[#a{}]"), 129),
    "aliases that double": (aliases(60, "[#a{0}, #a{0}]"), 24),
    "an alias over several lines": (aliases(60, "\n[#a{0},\n #a{0}]"), 70),
    "axes": (model('%0 = "a.b"() : () -> tensor<' + "1x" * 20_000 + "f32>"), 2),
    "digits": (model("%0 = arith.constant " + "9" * 1_000_000 + " : i64"), 2),
    "hexadecimal digits": (model("%0 = arith.constant 0x" + "F" * 1_000_000 + " : i64"), 2),
    "a permutation of letters": (model("%t = linalg.transpose ins(%x : tensor<4xf32>) outs(%x : tensor<4xf32>) "
                                       "permutation = [z]"), 2),
    "dimensions without an end": (model("%t = linalg.broadcast ins(%x : tensor<4xf32>) outs(%x : tensor<4xf32>) "
                                        "dimensions = [0, 1}"), 2),
    "a permutation beyond 64 bits": (model("%t = linalg.transpose ins(%x : tensor<4xf32>) outs(%x : tensor<4xf32>) "
                                           "permutation = [18446744073709551616]"), 2),
    "a permutation with a space that is none of the parser's": (
        model("%t = linalg.transpose ins(%x : tensor<1x4xf32>) outs(%x : tensor<1x4xf32>) permutation = [1,\xa00]"), 2),
    "a permutation that is no list": (model("%t = linalg.transpose ins(%x : tensor<1x4xf32>) outs(%x : tensor<1x4xf32>) // why\n"
                                            "permutation = tensor1, 0]"), 2),
    "dimensions in another form": (model("%t = linalg.reduce { arith.addf } ins(%x : tensor<1x4xf32>) outs(%x : tensor<4xf32>) "
                                         "dimensions == [0]"), 2),
    "an operand's place as a number": (model("%t = linalg.pack %x inner_dims_pos = [0] inner_tiles = [2, - 9223372036854775808] "
                                             "into %y : tensor<4xf32> -> tensor<1x?xf32>"), 2),
    "a concatenation along axis -1": (model("%t = tensor.concat dim(-1) %x, %x : (tensor<4xf32>, tensor<4xf32>) "
                                            "-> tensor<8xf32>"), 2),
    "the same in the generic form": (model('%t = "tensor.concat"(%x, %x) <{dim = -1 : i64}> : (tensor<4xf32>, tensor<4xf32>) '
                                           "-> tensor<8xf32>"), 2),
    "a group of no axes": (model("%t = tensor.expand_shape %x [[0, 1], []] output_shape [4, 1] "
                                 ": tensor<4xf32> into tensor<4x1xf32>"), 2),
    "more elements than text": (model("%t = tensor.from_elements %i, %i : tensor<65536x65536xindex>"), 2),
    "a value of a later region": (model(
        """%r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
          ins(%x : tensor<4xf32>) outs(%x : tensor<4xf32>) {
          linalg.yield %later : f32
        } -> tensor<4xf32>
        %s = linalg.map ins(%x : tensor<4xf32>) outs(%x : tensor<4xf32>) (%a: f32, %o: f32) {
          %later = arith.addf %a, %a : f32
          linalg.yield %later : f32
        }"""), 4),
    "an argument of a later region": (model(
        """%r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
          ins(%x : tensor<4xf32>) outs(%x : tensor<4xf32>) {
          %sum = arith.addf %later, %later : f32
          linalg.yield %sum : f32
        } -> tensor<4xf32>
        %s = linalg.map ins(%x : tensor<4xf32>) outs(%x : tensor<4xf32>) (%later: f32, %o: f32) {
          linalg.yield %later : f32
        }"""), 4),
    "a result beyond all": (model("%t = arith.addf %x#2147483648, %x#2147483648 : tensor<4xf32>"), 2),
}


@pytest.mark.parametrize("name", DEADLY)
def test_the_parser_never_sees_it(name: str) -> None:
    text, line = DEADLY[name]
    with pytest.raises(IngestError, match=rf"the model's text, line {line}: .* wanted a model within these bounds"):
        tw.compile(text)


@pytest.mark.parametrize("count", [text_bounds.NESTING // 2, text_bounds.NESTING - 20])
def test_the_parser_survives_what_is_within_the_bounds(count: int) -> None:
    for deep in (model(attribute="[" * count + "]" * count), aliases(count // 2, "[#a{}]"),
                 model('"a.b"() ({\n' * (count // 2) + "}) : () -> ()\n" * (count // 2))):
        check_bounds(deep, "it")
        try:
            ingest(deep, {})
        except TilewrightError as error:
            assert "bounds" not in str(error)


def test_brackets_in_strings_comments_and_blobs_do_not_count() -> None:
    brackets = "([{<" * 1000
    blob = "0x04000000" + base64.b16encode(bytes(1 << 20)).decode()
    text = (f'// {brackets}\n{model(f"// {brackets}", chr(34) + brackets + chr(34))}'
            + "{-#\n  dialect_resources: {\n    builtin: {\n      w: \"" + blob + "\"\n    }\n  }\n#-}\n")
    check_bounds(text, "it")
    assert tw.compile(text).inputs[0].name == "arg0"


def test_arrows_and_comparisons_are_no_brackets() -> None:
    check_bounds("#s = affine_set<(d0) : (d0 - 1 >= 0)>\n" * 3000 + "f : () -> ()\n" * 3000 + "- 1\n" * 3000, "it")


def test_models_are_within_the_bounds() -> None:
    for folder in ("examples", "tests/data", "tests/lit"):
        for path in (ROOT / folder).rglob("*.mlir"):
            check_bounds(path.read_text(), path.name)


def test_files_and_objects_are_looked_at_too(tmp_path: Path) -> None:
    path = tmp_path / "deep.mlir"
    path.write_text(DEADLY["nested arrays"][0])
    with pytest.raises(IngestError, match=r"deep\.mlir, line 1"):
        tw.compile(path)

    class Printed:
        def module_text(self) -> str:
            return path.read_text()

    with pytest.raises(IngestError, match="line 1"):
        tw.compile(Printed())
