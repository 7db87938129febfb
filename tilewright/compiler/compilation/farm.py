"""Farm: where a search builds and measures when one machine is not enough, as an option of a compile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.runtime.errors import OptionError
from tilewright.runtime.wording import option

LOCAL, AUTO = "local", "auto"


@dataclass(frozen=True)
class Farm:
    """A Ray cluster (extra `ray`).

    Args:
        address: "auto": the cluster that this machine is part of; "local": one of this process, on this machine; else its
            address, as Ray takes it.
        builders: processes that build kernels, a core each; None: one for each core that runners leave.
        runners: places that measure; None: one a node.
        cores: of a runner, which is pinned to them and measures with at most so many threads.
        resources: custom resources that a runner asks for, by which nodes of one CPU or GPU are told from others, e.g.
            {"zen3": 1}; where none is named, one by the name of the target's architecture ("sm_90a"), or of this CPU in LLVM's
            words ("znver3"), if nodes have it. Runners of CUDA targets ask for a GPU each besides.
        in_flight: most candidates under way; None: as many as keep the runners at work.
        join_seconds: that nodes may take to start what runs there.
        standby: keep a second process for each runner on a CPU, which is started and waits, so that a runner that is lost is
            replaced at once.
        labels: of nodes that runners have to be on (`ray start --labels`), e.g. {"cpu": "zen3"}.
    Raises:
        OptionError: a bad value; names the option and what is legal.
    """

    address: str = AUTO
    builders: int | None = None
    runners: int | None = None
    cores: int = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    in_flight: int | None = None
    join_seconds: float = 120.0
    labels: Mapping[str, str] = field(default_factory=dict)
    standby: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.address, str) or not self.address:
            raise OptionError(option("farm.address", self.address) + ": wanted 'auto', 'local' or the address of a Ray cluster")
        for name in ("builders", "runners", "cores", "in_flight"):
            value = getattr(self, name)
            if (value is None and name != "cores") or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
                continue
            raise OptionError(option(f"farm.{name}", value) + ": wanted an integer >= 1")
        if not isinstance(self.join_seconds, int | float) or not self.join_seconds > 0:
            raise OptionError(option("farm.join_seconds", self.join_seconds) + ": wanted a number of seconds > 0")
        amounts = self.resources.values() if isinstance(self.resources, Mapping) else [None]
        if not all(isinstance(v, int | float) and v > 0 for v in amounts):
            raise OptionError(option("farm.resources", self.resources) + ": wanted amounts by name, e.g. {'zen3': 1}")
        if not isinstance(self.standby, bool):
            raise OptionError(option("farm.standby", self.standby) + ": wanted True or False")
        labels = self.labels if isinstance(self.labels, Mapping) else {None: None}
        if not all(isinstance(k, str) and isinstance(v, str) for k, v in labels.items()):
            raise OptionError(option("farm.labels", self.labels) + ": wanted texts by name, e.g. {'cpu': 'zen3'}")
