"""Cores for runners: each takes some that no other runner of the machine has, and keeps them until its process ends."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

_ATTEMPTS, _PAUSE = 3, 0.01  # to claim cores, and seconds between two


def claim_cores(count: int) -> tuple[tuple[int, ...], list[int]]:
    """So many cores of those that the process may use, from the last on, and descriptors that hold the claim while they are open.
    Where too few are free, the last ones, which then are shared: no descriptor is held for these."""
    folder = _folder()
    allowed = sorted(os.sched_getaffinity(0), reverse=True)
    taken: list[int] = []
    held: list[int] = []
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE)  # a builder that looks at a core holds it for a moment
        for core in allowed:
            if len(taken) == count:
                break
            if core in taken:
                continue
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


def unclaimed(allowed: Collection[int]) -> set[int]:
    """Of cores, those that no runner holds; all where every one is held."""
    folder, found = _folder(), set[int]()
    for core in allowed:
        try:
            descriptor = os.open(folder / str(core), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            found.add(core)
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            found.add(core)
        except OSError:
            pass  # a runner's
        finally:
            os.close(descriptor)
    return found or set(allowed)


def _folder() -> Path:
    """A file for each core, which its runner has locked."""
    folder = Path(tempfile.gettempdir()) / f"tilewright-cores-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
