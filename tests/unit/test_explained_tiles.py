"""`tilewright explain` says where deterministic="batch" leaves tiles (AMX) out; no test here needs a CPU that has them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.cli.explain import tiles_left_out
from tilewright.compiler.cli.main import main
from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.runtime.program.program import Program


def model(deterministic: str) -> tw.CompiledFunction:
    g = ops.Graph()
    g.output(ops.matmul(g.input("x", ["M", 16]), g.input("w", [16, 24])))
    return tw.compile(g, {"M": (1, 8)}, options=tw.CompileOptions(deterministic=deterministic))


def with_kernels(program: Program, config: TileConfig) -> Program:
    """The program as if its kernels had this configuration."""
    replace = msgspec.structs.replace
    tables = tuple(replace(t, kernels=tuple(replace(k, config=config_text(config)) for k in t.kernels)) for t in program.tables)
    return replace(program, tables=tables)


@pytest.mark.parametrize(("config", "says"), [
    (HostMatmulConfig(pairs=True, ordered=True), True), (HostMatmulConfig(quads=True, ordered=True), True),
    (HostMatmulConfig(ordered=True), False)])
def test_ordered_words_are_told(config: HostMatmulConfig, says: bool) -> None:
    made = with_kernels(model("batch").program, config)
    assert ("AMX" in tiles_left_out(made)) is says
    assert not tiles_left_out(msgspec.structs.replace(made, asked=msgspec.structs.replace(made.asked, deterministic="shape")))


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.tw"
    model("batch").save(path)
    monkeypatch.setattr("tilewright.compiler.cli.explain.tiles_left_out", lambda program: f"tiles of {program.target}")
    assert main(["explain", str(path), "--dim", "M=3"]) == 0
    assert "tiles of host" in capsys.readouterr().out
