"""CPU time that control groups leave to this process: what containers are limited by, beside the cores they may run on.

References: https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max),
https://docs.kernel.org/scheduler/sched-bwc.html (version 1)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MOUNTS = Path("sys/fs/cgroup")


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Cores' worth of time: the least quota over its period of the process's groups and those around them; None: no limit.

    Args:
        root: the folder that holds /proc and /sys.
    """
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[float]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        names = controllers.split(",")
        if not controllers:
            mounts = [root / _MOUNTS, root / _MOUNTS / "unified"]
        elif "cpu" in names:
            mounts = [root / _MOUNTS / name for name in dict.fromkeys((controllers, "cpu"))]
        else:
            continue
        for mount in mounts:
            for folder in _around(mount, PurePosixPath(group)):
                yield from _quota(folder)


def _around(mount: Path, group: PurePosixPath) -> Iterator[Path]:
    """The folders of a group and of those around it. A container may see its own as the root, under whatever name."""
    inside = group.relative_to("/") if group.is_absolute() and ".." not in group.parts else PurePosixPath()
    yield from (mount / path for path in (inside, *inside.parents))


def _quota(folder: Path) -> Iterator[float]:
    words = _text(folder / "cpu.max").split()
    if not words:
        words = [_text(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    try:
        quota, period = map(int, words)
    except ValueError:  # "max", or no such files
        return
    if quota > 0 and period > 0:
        yield quota / period


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
