"""The Ray cluster of a farm: joined or started, and room on it for builders and runners of a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tilewright.compiler.builder.codegen import host_target
from tilewright.compiler.compilation.farm import LOCAL, Farm
from tilewright.compiler.tuning.cluster_authentication import as_nodes_do
from tilewright.runtime.errors import OptionError
from tilewright.runtime.target import Target, TargetKind
from tilewright.search.runner.ray_actors import ray_module

_STORE_BYTES = 100 << 20  # of the object store of a local cluster
_ROOM_SECONDS = 60.0  # to wait for room at most


@dataclass(frozen=True)
class Placed:
    """Room of a farm: a placement group, whose first bundles are those of runners, with what a runner takes of its own."""

    group: Any
    builders: int
    runners: int
    runner: Mapping[str, float]


@contextmanager
def connected(farm: Farm) -> Iterator[None]:
    """This process is part of the cluster; at the end it leaves, where it was not before. May be nested.

    Raises:
        OptionError: there is no such cluster.
    """
    ray = ray_module()
    own = not ray.is_initialized()
    if own:
        starts = farm.address == LOCAL  # one of its own, also where this machine is part of another
        options: dict[str, Any] = {"object_store_memory": _STORE_BYTES, "include_dashboard": False} if starts else {}
        try:
            with as_nodes_do(farm.address):
                ray.init(farm.address, logging_level="ERROR", log_to_driver=False, namespace="tilewright", **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            why = str(error).splitlines()[0]
            raise OptionError(f"farm: no Ray cluster at {farm.address!r}: {why}; start one with `ray start --head`, or give "
                              "--ray local for one on this machine") from error
    try:
        yield
    finally:
        if own:
            ray.shutdown()


def alive_nodes() -> int:
    """Nodes of the cluster."""
    return sum(1 for node in ray_module().nodes() if node["Alive"])


def runner_needs(farm: Farm, target: Target) -> dict[str, float]:
    """What a runner takes: its cores, a GPU where it measures on one, and the custom resources that the farm names. Where it
    names none, one that nodes have by the name of the target's architecture, such as sm_90a, or of this host's CPU in LLVM's
    words, such as znver3."""
    needs: dict[str, float] = {"CPU": farm.cores}
    if target.kind is TargetKind.CUDA:
        needs["GPU"] = 1
    if farm.resources:
        return {**needs, **farm.resources}
    name = host_target(target).cpu if target.kind is TargetKind.HOST else target.arch
    return {**needs, name: 1} if ray_module().cluster_resources().get(name, 0) >= 1 else needs


def shared_among(farm: Farm, count: int) -> Farm:
    """The farm as one of so many that share the cluster: the cores that all runners leave are divided for builders."""
    if farm.builders is not None or count == 1:
        return farm
    ray = ray_module()
    runners = count * (farm.runners or alive_nodes()) * farm.cores
    builders = max(1, (int(ray.cluster_resources().get("CPU", 1)) - runners) // count)
    return replace(farm, builders=builders)


def placed(farm: Farm, target: Target) -> Placed:
    """Room for all of them, over the nodes.

    Raises:
        OptionError: there is too little.
    """
    ray = ray_module()
    needs = runner_needs(farm, target)
    have = ray.cluster_resources()
    runners = farm.runners or max(1, int(have["GPU"]) if "GPU" in needs and "GPU" in have else alive_nodes())
    builders = farm.builders or max(1, int(have.get("CPU", 1)) - runners * farm.cores)
    bundles = [needs] * runners + [{"CPU": 1}] * builders
    labels = {"bundle_label_selector": [dict(farm.labels)] * runners + [{}] * builders} if farm.labels else {}
    group = ray.util.placement_group(bundles, strategy="SPREAD", **labels)
    if not group.wait(min(farm.join_seconds, _ROOM_SECONDS)):
        ray.util.remove_placement_group(group)
        asked = [f"{amount:g} {name}" for name, amount in needs.items() if name != "CPU"]
        besides = ", ".join([*asked, *(f"label {name}={value}" for name, value in farm.labels.items())])
        there = {k: v for k, v in have.items() if not k.startswith(("node:", "object", "memory"))}
        raise OptionError(f"farm: wanted {runners} runners of {farm.cores} cores{besides and f' ({besides})'} and {builders} "
                          f"builders, and the cluster has {there}; ask for fewer")
    return Placed(group, builders, runners, {k: v for k, v in needs.items() if k not in ("CPU", "GPU")})
