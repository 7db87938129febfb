"""The suite `control`: loops, recurrences, decoding and a branch, written as users write them.

`running_sum`: rows added up. `selective_scan`: Mamba's, h = exp(delta A) h + delta b x, y = sum of c h. `lstm`, `gru`: one layer,
gates in torch's order. `greedy`: a recurrent model whose next input is the row of its best-scored token. `branch`: a product or a
function of elements, by the sign of a sum. `gpt2_greedy`, `gpt2_beam`: decoding.py. Peers use what they have for
a case (an operator, else a loop of theirs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tools.bench.control import decoding
from tools.bench.operator_spec import Input, Operator

SUITE = "control"
CHANNELS, STATE = 256, 16  # of the selective scan
MODEL, TOKENS = 128, 1000  # of greedy decoding
WIDTHS = (64, 256, 512)  # of the recurrent layers
STEPS = (64, 256, 1024)
LENGTHS = (1, 16, 128, 256)


def cases() -> Iterator[Operator]:
    """Every case, at the steps that are measured."""
    rows = {"x": Input(("T", CHANNELS))}
    yield _case("running_sum", rows, ("T", CHANNELS), STEPS)
    yield _case("selective_scan", {
        "x": Input(("T", CHANNELS)), "d": Input(("T", CHANNELS), scale=0.5), "b": Input(("T", STATE)), "c": Input(("T", STATE)),
        "a": Input((CHANNELS, STATE), True, 0.5)}, ("T", CHANNELS), STEPS)
    for kind, gates in (("lstm", 4), ("gru", 3)):
        for batch in (1, 16):
            for width in WIDTHS:
                yield _recurrent(kind, gates, batch, width)
    yield _case("greedy", {
        "x": Input(("T", MODEL)), "e": Input((TOKENS, MODEL), True), "w": Input((MODEL, MODEL), True, 0.05),
        "u": Input((MODEL, TOKENS), True)}, ("T", MODEL), (16, 64))
    for kind in decoding.KINDS:
        yield _case(kind, decoding.inputs(), ("T", decoding.MODEL), (64,))
    yield _case("branch", {"x": Input(("T", CHANNELS)), "w": Input((CHANNELS, CHANNELS), True, 0.05)}, ("T", CHANNELS), (1, 64))


def _recurrent(kind: str, gates: int, batch: int, width: int) -> Operator:
    weight = Input((gates * width, width), True, 0.05)
    bias = Input((gates * width,), True, 0.1)
    inputs = {"x": Input(("T", batch, width)), "w": weight, "r": weight, "b": bias, "s": bias}
    case = _case(kind, inputs, ("T", batch, width), LENGTHS, f"{kind}_{batch}x{width}")
    return replace(case, params={"width": width})


def _case(kind: str, inputs: Mapping[str, Input], output: tuple[int | str, ...], steps: tuple[int, ...],
          name: str = "") -> Operator:
    return Operator(name or kind, kind, SUITE, inputs, output, {"T": (1, 1024)}, tuple({"T": t} for t in steps))
