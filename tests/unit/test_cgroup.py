"""CPU limits of control groups, of both versions, read under a folder that stands for the root."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tilewright.runtime.host import host_cpu
from tilewright.runtime.host.cgroup import cpu_limit
from tilewright.runtime.host.host_caller import affinity

V1, V2 = "3:cpu,cpuacct:/docker/abc\n1:memory:/\n", "0::/user.slice/job\n"


@pytest.mark.parametrize(("groups", "files", "wanted"), [
    (V2, {"user.slice/job/cpu.max": "150000 100000\n"}, 1.5),
    (V2, {"user.slice/job/cpu.max": "max 100000\n"}, None),
    (V2, {"user.slice/job/cpu.max": "800000 100000\n", "user.slice/cpu.max": "300000 100000\n", "cpu.max": "max 100000\n"}, 3),
    (V2, {"cpu.max": "50000 100000\n"}, 0.5),
    (V2, {"unified/user.slice/job/cpu.max": "200000 100000\n"}, 2),
    ("0::/../../other\n", {"cpu.max": "200000 100000\n", "other/cpu.max": "100000 100000\n"}, 2),
    (V1, {"cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "400000\n", "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n"}, 4),
    (V1, {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.5),
    (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
    (V1 + V2, {"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n", "unified/cpu.max": "200000 100000"}, 2),
    ("2:cpuset:/a\n", {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
    (V2, {"user.slice/job/cpu.max": "odd\n", "user.slice/cpu.max": "1 0\n"}, None),
    ("", {}, None), ("nonsense\n::\n0::relative\n", {}, None),
])  # fmt: skip
def test_the_least_quota_around_the_process(tmp_path: Path, groups: str, files: Mapping[str, str], wanted: float | None) -> None:
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{n}": t for n, t in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_limit(tmp_path) == wanted


@pytest.mark.parametrize(("limit", "wanted"), [(None, 6), (2.9, 2), (0.4, 1), (64.0, 6)])
def test_threads_are_whole_cores_within_the_limit(monkeypatch: pytest.MonkeyPatch, limit: float | None, wanted: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(host_cpu, "cpu_limit", lambda: limit)
    monkeypatch.delenv("TILEWRIGHT_THREADS", raising=False)
    assert affinity() == host_cpu.thread_count() == wanted
    assert host_cpu.thread_count(1) == 1
