"""`tilewright logs`, and options that name logs and priors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_surfaces import dense

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.cli.main import main
from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.host.host_matmul import HostMatmulConfig
from tilewright.runtime.errors import OptionError
from tilewright.search.database.records import TuningLog, TuningRecord
from tilewright.search.database.stored_log import open_log

HOST = "host znver3 256 bits l2=512K l3=32M cores=2"


def filled(place: str, workloads: Sequence[int] = (1, 2, 3, 4), device: str = HOST, slow: float = 1.0) -> None:
    """Records of some products: the time falls with the block's height."""
    log = open_log(place, writes=True)
    for n in workloads:
        w = dense(64 * n, key=f"{n:08x}")
        log.describe(w)
        for mr in (1, 2, 3, 4, 6):
            for m in (8, 32, 128):
                config = config_text(HostMatmulConfig(mr, 2, 8))
                seconds = slow * 1e-8 * m * n * (1 + 1 / mr)
                made = TuningRecord(w.key, w.name, "host_matmul", config, {"d0": m}, 1, (seconds,), device=device, when=float(m))
                log.add(made)
    log.finish()


def events(capsys: pytest.CaptureFixture[str], *line: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["logs", *line, "--json"]) == 0
    return [json.loads(text) for text in capsys.readouterr().out.splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> str:
    filled(str(tmp_path / "log.jsonl"))
    return str(tmp_path / "log.jsonl")


def test_ls_top_and_diff(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *rows, whole = events(capsys, "ls", log)
    assert [r["records"] for r in rows] == [15] * 4 and whole["records"] == 60 and whole["workloads"] == 4
    top = events(capsys, "top", log, "--workload", "00000002", "--count", "1")
    assert {t["dims"]["d0"]: "mr=6" in t["config"] for t in top} == {8: True, 32: True, 128: True}
    filled(str(tmp_path / "other.jsonl"), (1, 2), slow=1.5)
    found = events(capsys, "diff", log, str(tmp_path / "other.jsonl"))
    assert [r["ratio"] for r in found[:2]] == pytest.approx([1.5, 1.5]) and found[2]["first_alone"] == 3
    assert main(["logs", "ls", log]) == 0 and main(["logs", "top", log]) == 0 and main(["logs", "diff", log, log]) == 0


def test_merge_export_and_compact(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = f"{tmp_path}/store/"
    (merged,) = events(capsys, "merge", store, log)
    assert merged["records"] == 60
    (again,) = events(capsys, "merge", store, log)
    assert again["records"] == 0
    (done,) = events(capsys, "compact", store)
    assert done["records"] == 60 and done["workloads"] == 4
    (out,) = events(capsys, "export", store, "-o", str(tmp_path / "out.jsonl"), "--workload", "00000003")
    assert out["records"] == 15
    taken = TuningLog(tmp_path / "out.jsonl")
    assert len(taken) == 15 and set(taken.workloads) == {"00000003"}
    events(capsys, "export", store, "-o", str(tmp_path / "out.csv"))
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 61
    assert main(["logs", "export", store, "-o", str(tmp_path / "out.csv")]) == 1
    assert main(["logs", "compact", log]) == 1 and "needs no compaction" in capsys.readouterr().err
    assert main(["logs", "ls", str(tmp_path / "none")]) == 1


def test_training_on_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for place, why in (("none", "there is no such file or folder"), ("empty", "wanted measurements of kernels to train on")):
        assert main(["logs", "train", str(tmp_path / place), "-o", str(tmp_path / "models")]) == 1
        assert why in capsys.readouterr().err and not (tmp_path / "models").exists()


def test_train_writes_models_that_are_no_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(f"{tmp_path}/store/")
    folder = tmp_path / "priors"
    (first,) = events(capsys, "train", f"{tmp_path}/store", "-o", str(folder))
    assert first["family"] == "host_matmul" and first["records"] == 60 and first["own"]["order"] > 0.8
    assert first["before"] is not None  # that of the package
    assert first["arithmetic"]["shapes"] == first["own"]["shapes"] == 12 and first["arithmetic"]["regret"] >= 0
    (forced,) = events(capsys, "train", f"{tmp_path}/store", "-o", str(folder), "--force")
    assert forced["written"] and (folder / "host_matmul.model").is_file()
    stored = json.loads((folder / "host_matmul.json").read_text())
    assert stored["schema"] == 1 and stored["digest"] == forced["digest"] and stored["own"]["shapes"] == 12
    assert tw.CompileOptions(prior=str(folder)).prior == folder
    with pytest.raises(OptionError, match="a folder of `tilewright logs train`"):
        tw.CompileOptions(prior="nowhere")
    (again,) = events(capsys, "train", f"{tmp_path}/store", "-o", str(folder))
    assert again["written"] and again["before"]["regret"] == pytest.approx(again["own"]["regret"], abs=0.01)


def test_a_colleague_finds_records_and_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ops.Graph()
    graph.output(ops.matmul(graph.input("x", ["M", 16]), graph.input("w", [16, 24])))
    w = np.ones((16, 24), np.float32)
    store = f"{tmp_path}/store/"
    options = {"log": store, "trials": 6, "threads": 1}
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "one"))
    fn = tw.compile(graph, {"M": (1, 8)}, constants={"w": w}, options=options)
    assert list(Path(store, "kernels").glob("*/*")) and len(open_log(store)) > 0
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "two"))
    built: list[object] = []
    monkeypatch.setattr("tilewright.compiler.builder.worker_pool.WorkerPool.submit", lambda *a: built.append(a))
    for path in Path(store, "kernels").glob("*/*"):
        assert path.read_bytes()[:8] == b"\x89TWENTR\n"
    again = tw.compile(graph, {"M": (1, 8)}, constants={"w": w}, options={"log": store, "threads": 1})
    assert not built
    assert [k.config for t in again.program.tables for k in t.kernels] == [k.config for t in fn.program.tables for k in t.kernels]
    damaged = next(iter(Path(store, "kernels").glob("*/*")))
    damaged.write_bytes(damaged.read_bytes()[:-3] + b"abc")
    from tilewright.compiler.builder.kernel_shelf import shelf_of

    shelf = shelf_of(store)
    assert shelf is not None and shelf.get(damaged.parent.name + damaged.name) is None


def test_a_model_that_arithmetic_beats_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.search.prior import train

    filled(f"{tmp_path}/store/")
    better, worse = train.Score(0.1, 0.9, 0.0, 3), train.Score(0.1, 0.9, 0.1, 3)
    monkeypatch.setattr("tilewright.search.prior.shipped.shipped", lambda family: None)
    for plain, own, written in ((better, worse, False), (worse, better, True)):
        monkeypatch.setattr(train, "score", lambda model, held, p=plain, o=own: o if model.trained else p)
        (found,) = events(capsys, "train", f"{tmp_path}/store", "-o", str(tmp_path / "priors"))
        assert found["written"] is written and found["before"] is None
        assert found["arithmetic"]["regret"] == pytest.approx(plain.regret)
