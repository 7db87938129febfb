"""Cores for runners: each takes some that no other runner of the machine has, and keeps them until its process ends."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path


def claim_cores(count: int) -> tuple[tuple[int, ...], list[int]]:
    """So many cores of those that the process may use, from the last on, and descriptors that hold the claim while they are open.
    Where too few are free, the last ones, which then are shared: no descriptor is held for these."""
    folder = Path(tempfile.gettempdir()) / f"tilewright-cores-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    allowed = sorted(os.sched_getaffinity(0), reverse=True)
    taken: list[int] = []
    held: list[int] = []
    for core in allowed:
        if len(taken) == count:
            break
        descriptor = os.open(folder / str(core), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            continue
        taken.append(core)
        held.append(descriptor)
    taken += [core for core in allowed if core not in taken][: count - len(taken)]
    return tuple(sorted(taken)), held
