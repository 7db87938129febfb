"""What processes hold and leave behind: descriptors, memory, processes, temporary files."""

from __future__ import annotations

import collections
import ctypes
import gc
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from tools.soak.messages import Resources

_KIND = re.compile(r":\[\d+\]$| \(deleted\)$")  # what a link adds to the name of a file, or to "pipe"
_PID_IN_NAME = re.compile(r"\.(\d+)\.[^.]+(\.tmp)?$")  # of a file that is written beside its place


def resources(at: str) -> Resources:
    """Of this process, once garbage is collected and freed memory given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return Resources(at, descriptors(), resident())


def resident() -> int:
    """Bytes of this process that lie in memory and are its own (not of files that are mapped)."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")


def descriptors() -> dict[str, int]:
    """Open descriptors of this process, counted by what they are: a path, or "pipe", "socket" and so on."""
    found: collections.Counter[str] = collections.Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            found[_KIND.sub("", os.readlink(f"/proc/self/fd/{name}"))] += 1
        except OSError:
            continue  # the one that lists the folder
    return dict(found)


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What there is more of."""
    return {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    return [child for child in _pids() if _parent(child) == pid]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def processes_under(folder: Path) -> list[int]:
    """Processes that live and were started with a TMPDIR inside `folder`."""
    mark = b"\0TMPDIR=" + os.fsencode(folder) + b"/"
    found = []
    for pid in _pids():
        try:
            environment, state = Path(f"/proc/{pid}/environ").read_bytes(), Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue  # ended meanwhile, or somebody else's
        if mark in b"\0" + environment and state.rpartition(")")[2].split()[0] != "Z":
            found.append(pid)
    return found


def leftovers(temporary: Path, shared: Collection[Path], killed: Collection[str], killed_pids: Collection[int]) -> list[str]:
    """Temporary files of actors that were not killed, which had the chance to remove them.

    Args:
        temporary: a folder for each actor, by its name. shared: folders of files that are written beside their place, whose
            names hold the writer's process.
        killed, killed_pids: the actors that were killed, whose files are excused.
    """
    found = [str(p) for p in sorted(temporary.glob("*/*")) if p.parent.name not in killed]
    for folder in shared:
        for path in sorted(folder.rglob(".*")):
            pid = _PID_IN_NAME.search(path.name)
            if path.is_file() and not (pid and int(pid[1]) in killed_pids):
                found.append(str(path))
    return found
