"""What a log of other GPUs says: a cost model to start from, of which only the occupancy terms have to move."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.passes.spaces.family_registry import family_names, family_of, parse_config, space_of
from tilewright.passes.spaces.tile_config import TileConfig
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.errors import OptionError
from tilewright.runtime.limits import GpuLimits
from tilewright.search.cost_model.forms import form_of
from tilewright.search.cost_model.measured import training_samples
from tilewright.search.cost_model.model import CostModel, Samples
from tilewright.search.database.records import TuningLog, TuningRecord
from tilewright.search.database.workload_form import WorkloadForm
from tilewright.search.runner.gpu_environment import limits_of_name
from tilewright.search.space.lattice import Lattice

_LEAST = 8  # measurements from which a model is worth learning


def prior_from_log(log: TuningLog, families: Collection[str], device: str) -> CostModel | None:
    """Learned from the records of these GPU families on all devices but `device`; None where there are too few.

    Each record's time is divided by what arithmetic says for its own device, so that what is left is the kernel's.
    """
    wanted = set(families) & set(family_names(gpu=True))
    groups: dict[tuple[str, str], list[TuningRecord]] = {}
    for r in log.records:
        if r.seconds and r.family in wanted and r.device != device and r.workload in log.workloads:
            groups.setdefault((r.device, r.workload), []).append(r)
    samples = [s for (name, key), records in groups.items() if (s := _samples(log.workloads[key], name, records)) is not None]
    if sum(map(len, samples)) < _LEAST:
        return None
    model = CostModel()
    model.fit(samples)
    return model


def _samples(form: WorkloadForm, device: str, records: list[TuningRecord]) -> Samples | None:
    """None for a device whose name tells no limits, and where no configuration is read."""
    try:
        limits, workload = limits_of_name(device), form.workload()
        configs = (_readable(text, workload, limits) for text in dict.fromkeys(r.config for r in records))
        lattice = Lattice(workload, limits, [c for c in configs if c is not None])
    except OptionError:
        return None
    for r in records:
        if r.built is not None:
            lattice.note(r.config, r.built)
    return training_samples(form_of(lattice), records)


def _readable(text: str, workload: Workload, limits: GpuLimits) -> TileConfig | None:
    """A configuration of the workload; None for a text that is none, or no longer."""
    try:
        config = parse_config(text)
    except OptionError:
        return None
    fits = family_of(config.family).gpu and space_of(config.family).why_invalid(config, workload, limits) is None
    return config if fits else None
