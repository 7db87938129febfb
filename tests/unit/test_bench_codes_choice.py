"""The bench of what is chosen of products in few bits: every algorithm is built, and none serves more bits than it is for."""

from __future__ import annotations

import pytest

from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.passes.spaces.host.host_codes import HostCodesConfig
from tilewright.passes.spaces.host.host_pools import HostPoolsConfig
from tilewright.runtime.target import Target
from tools.bench.codes_choice import Chosen, Product, algorithm, measure
from tools.bench.codes_systems import Case
from tools.bench.thresholds.rederive import Built

SIZE, HOST = (64, 64), Target.parse("host")


@pytest.mark.parametrize("config,name", [
    (HostPoolsConfig(permute=True), "permute"), (HostPoolsConfig(16, bits=4), "16 rows, 4 bits"),
    (HostPoolsConfig(1, bits=5, shuffle=True), "shuffle, 5 bits"), (HostPoolsConfig(8), "8 rows"),
    (HostCodesConfig(4, dot=4), "bytes"), (HostCodesConfig(2, dot=2), "bytes, 2 rows"), (HostCodesConfig(1), "registers, 1 rows"),
    (HostCodesConfig(1, decode=True), "panel"),
])
def test_names(config: HostPoolsConfig | HostCodesConfig, name: str) -> None:
    assert algorithm(config) == name


def test_ratio() -> None:
    assert Chosen("a", 2.0, {"one": (2.0, "a"), "other": (1.0, "b")}).ratio == 2.0
    assert Chosen("a", 1.0, {"one": (1.5, "c"), "other": (2.0, "b")}).ratio == 1.0


def test_products_of_pools_by_bits() -> None:
    product = Product(Case.read("p16", SIZE, 0), whole=True)
    found = list(measure(product, [1, 16], [8, 4], (HOST, 1), Built(LocalBuilder(HOST)), (1, 0.001)))
    assert [(m, a) for m, a, _ in found] == [(1, 8), (1, 4), (16, 8), (16, 4)]
    for _, bits, chosen in found:
        assert chosen.config and chosen.seconds > 0 and {"1 rows", "8 rows"} <= chosen.fastest.keys()
        assert all(not n.endswith(" bits") or int(n.split()[-2]) >= bits for n in chosen.fastest)


def test_products_of_codes() -> None:
    found = list(measure(Product(Case.read("4g32", SIZE, 0), whole=False), [1, 8], [8], (HOST, 1),
                         Built(LocalBuilder(HOST)), (1, 0.001)))
    assert [(m, a) for m, a, _ in found] == [(1, 0), (8, 0)]
    assert all({"panel", "registers, 1 rows"} <= chosen.fastest.keys() for *_, chosen in found)
