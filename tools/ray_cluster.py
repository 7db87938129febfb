"""A Ray cluster of several nodes on this machine (ray.cluster_utils), with no process beside those that a farm needs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# no workers that no actor has asked for, and none that other work of the machine keeps from starting
_LEAN = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0", "RAY_worker_niceness": "0"}
NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 << 20}
_STARTS = 3  # tries to start a node
_SERVERS = ("/raylet/raylet ", "/gcs/gcs_server ")  # what the processes of a node are called
_REFUSALS = (Exception, RuntimeError, TimeoutError)  # what Ray raises of a node that is not there in time


@contextmanager
def started(nodes: int, cpus: int = 2) -> Iterator[Any]:
    """The cluster, this process connected to it. cpus: of its head. At the end nothing of it is left."""
    import ray
    from ray.cluster_utils import Cluster

    for name, value in _LEAN.items():
        os.environ.setdefault(name, value)
    cluster = Cluster()
    try:
        add_node(cluster, **{**NODE, "num_cpus": cpus, "include_dashboard": False, "no_monitor": True,
                             "include_log_monitor": False})
        for _ in range(nodes - 1):
            add_node(cluster, **NODE)
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def add_node(cluster: Any, **node: Any) -> Any:
    """Another node, or the first; Ray's object of it. Ray gives up one that is not there within 30 s, as happens where a machine
    has much to do, and leaves its processes; they are ended here, and the node is started again."""
    for tried in range(1, _STARTS + 1):
        known, before = cluster.list_all_nodes(), servers()
        try:
            return cluster.add_node(**node)
        except Exception as error:
            if type(error) not in _REFUSALS or tried == _STARTS:
                raise
        for made in cluster.list_all_nodes():
            if made not in known:
                cluster.remove_node(made, allow_graceful=False)
        for process in servers() - before:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    raise AssertionError("the last try returns or raises")


def servers() -> set[int]:
    """Ray's own processes of nodes that this process started."""
    return {process for name in _SERVERS for process in processes(name)}


def strays() -> set[int]:
    """Ray's processes of no node that runs, and those that this process started; other clusters here may come and go."""
    nodes = everywhere(_SERVERS[0])
    found = {process: set(ancestors(process)) for process in everywhere("ray::")}
    return {process for process, before in found.items() if os.getpid() in before or not nodes & before}


def everywhere(word: str) -> set[int]:
    """Processes whose title or command line holds a word, whoever started them."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if word in (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                    found.add(int(entry.name))
    return found


def processes(word: str) -> list[int]:
    """Those that this process started, or that they started."""
    return [process for process in everywhere(word) if os.getpid() in ancestors(process)]


def ancestors(process: int) -> list[int]:
    """The process that started it, that one's, and so on."""
    found: list[int] = []
    with suppress(OSError):
        while process > 1:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
            found.append(process)
    return found
