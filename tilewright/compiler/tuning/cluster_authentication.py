"""Whether a Ray cluster wants a token: a driver does as the cluster's nodes on its machine do.

Since 2.60 Ray turns tokens on where it finds one in the home directory, also in a driver that joins, by `auto`, a cluster without
them, and off in one that joins, by address, a cluster with them. The two then refuse each other's calls: actors are cancelled
before they start, or nothing answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tilewright.compiler.compilation.farm import AUTO, LOCAL
from tilewright.search.runner.ray_actors import ray_module

MODE = "RAY_AUTH_MODE"
_OFF = "disabled"
_OF_CLUSTER = "--gcs-address="


@contextmanager
def as_nodes_do(address: str, processes: Path = Path("/proc")) -> Iterator[None]:
    """Within it `ray.init(address)` uses a token or none, as the cluster does, unless RAY_AUTH_MODE says which; afterwards the
    environment is as before."""
    before = os.environ.get(MODE)
    mode = None if before is not None or address == LOCAL else mode_of(address, processes)
    try:
        if mode is not None:
            os.environ[MODE] = mode
            ray_module()._raylet.Config.initialize("")  # Ray reads it once, when it is imported
        yield
    finally:
        if before is None:
            os.environ.pop(MODE, None)  # Ray sets it, and what the next one wants may differ


def mode_of(address: str, processes: Path = Path("/proc")) -> str | None:
    """What the nodes of a cluster that run on this machine were started with; None where none is seen, or they differ."""
    wanted = os.environ.get("RAY_ADDRESS") or address if address == AUTO else address
    if wanted.startswith("ray://"):
        return None
    nodes = _nodes(processes)
    modes = {mode for cluster, mode in nodes if cluster == wanted} or {mode for _, mode in nodes}
    return modes.pop() if len(modes) == 1 else None


def _nodes(processes: Path) -> list[tuple[str, str]]:
    """(address of the cluster, mode) of each node on this machine whose environment may be read."""
    found = []
    for entry in processes.glob("[0-9]*"):
        with suppress(OSError):
            line = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if os.path.basename(line[0]) == "raylet":
                environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                cluster = next((word[len(_OF_CLUSTER):] for word in line if word.startswith(_OF_CLUSTER)), "")
                found.append((cluster, dict(v.partition("=")[::2] for v in environment).get(MODE, _OFF)))
    return found
