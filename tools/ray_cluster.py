"""A Ray cluster of several nodes on this machine (ray.cluster_utils), with no process beside those that a farm needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LEAN = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}  # workers that no actor has asked for
NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 << 20}


@contextmanager
def started(nodes: int, cpus: int = 2) -> Iterator[Any]:
    """The cluster, this process connected to it. cpus: of its head. At the end nothing of it is left."""
    import ray
    from ray.cluster_utils import Cluster

    for name, value in _LEAN.items():
        os.environ.setdefault(name, value)
    head = {**NODE, "num_cpus": cpus, "include_dashboard": False, "no_monitor": True, "include_log_monitor": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**NODE)
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
