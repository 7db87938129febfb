"""A driver of a farm uses a token where the cluster's nodes do; test_farm.py has the same on a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.compiler.tuning import cluster_authentication
from tilewright.compiler.tuning.cluster_authentication import MODE, as_nodes_do, mode_of


def test_a_driver_does_with_tokens_as_the_nodes_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MODE, raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    read: list[str | None] = []
    config = SimpleNamespace(initialize=lambda text: read.append(os.environ.get(MODE)))
    monkeypatch.setattr(cluster_authentication, "ray_module", lambda: SimpleNamespace(_raylet=SimpleNamespace(Config=config)))

    def node(number: int, cluster: str, *variables: str, name: str = "raylet") -> None:
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_text(f"/ray/{name}\0--gcs-address={cluster}\0")
        (tmp_path / str(number) / "environ").write_text("\0".join(("A=b", *variables)))

    assert mode_of("auto", tmp_path) is None
    node(1, "here:1", "RAY_AUTH_MODE=token")
    node(2, "here:2", "RAY_AUTH_MODE=disabled", name="other")
    assert mode_of("auto", tmp_path) == mode_of("localhost:1", tmp_path) == "token" and mode_of("ray://here:1", tmp_path) is None
    node(3, "here:2")
    assert [mode_of(a, tmp_path) for a in ("here:1", "here:2", "auto")] == ["token", "disabled", None]
    for address in ("here:1", "here:2", "auto", "local"):
        with as_nodes_do(address, tmp_path):
            os.environ.setdefault(MODE, "token")  # as Ray does
        assert MODE not in os.environ
    assert read == ["token", "disabled"]
    monkeypatch.setenv(MODE, "token")
    with as_nodes_do("here:2", tmp_path):
        assert os.environ[MODE] == "token"
