"""CompileOptions: what a user may ask of `compile`, checked when it is made."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tilewright.compiler.compilation.farm import Farm
from tilewright.runtime.errors import OptionError, perhaps
from tilewright.runtime.program.program import GRAPH_MEMORY
from tilewright.runtime.shape import ShapeRange
from tilewright.runtime.sizes import parse_size
from tilewright.runtime.wording import choices, option
from tilewright.search.task_scheduler.policies import Thompson, Ucb, policies

if TYPE_CHECKING:
    from tilewright.passes.base import Callback
    from tilewright.search.protocols import Builder

E = TypeVar("E", bound=Enum)


class Precision(Enum):
    """What f32 contractions of the model may be computed in."""

    F32 = "f32"
    TF32 = "tf32"
    BF16 = "bf16"
    F16 = "f16"


class Activations(Enum):
    """What rows that meet weights in few bits are multiplied as."""

    F32 = "f32"
    INT8 = "int8"


class Deterministic(Enum):
    """What gives the same bits: one shape, or (BATCH) also a row of a batch whatever the batch."""

    SHAPE = "shape"
    BATCH = "batch"


class OutOfRange(Enum):
    """What a call outside the declared range does: raise ShapeError, or run the fallback kernels."""

    ERROR = "error"
    FALLBACK = "fallback"


class Graphs(Enum):
    """Whether calls on a GPU are launched as CUDA graphs: where it was measured to be faster, always, or never."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


Traffic = Sequence[tuple[Mapping[str, int] | tuple[tuple[str, int], ...], float]]


def default_policy(is_farm: bool) -> str:
    """Of a search for a whole model. Where many candidates are under way, draws from the beliefs spread them over the arms, as
    Thompson sampling does; the largest bound of "ucb" leads all of them to the same one."""
    return Thompson.name if is_farm else Ucb.name


@dataclass(frozen=True)
class CompileOptions:
    """Options of `compile`, as values: enums, paths and traffic are converted when it is made.

    callback, builder, progress, farm and isolate watch or serve one compile: they are no part of equality, hashes and cache keys.

    Args:
        threads: most threads a call uses, which work is divided for; None: all that the process may run on.
        seconds: time the search may take; None: no search, configurations come from the rules of each family.
        trials: measurements the search may take; None: as many as fit in `seconds`.
        max_regret: how much slower than the best kernel of a shape the dispatched one may be, as a fraction.
        max_kernels: most kernels per operator; None: as many as `max_regret` needs.
        precision: "f32", or "tf32", "bf16", "f16" for the contractions of f32 models.
        activations: "f32", or "int8": rows that products with weights in few bits read are rounded to bytes, with a scale for
            each group of the weights (`tw.ops.quantise`), and multiplied as integers.
        deterministic: "shape", or "batch" to keep the order of every sum equal over all kernels of an operator.
        winograd: whether convolutions on the host may go through Winograd's transforms, of up to 4 x 4 pixels: 0.25 to 0.7 of
            the multiplications, rounded differently, and NaN and inf reach all pixels of their tile.
        traffic: pairs (dims, weight): how often each shape is expected, e.g. [({"B": 1, "S": 57}, 0.2)].
        seed: seed of everything random in the search.
        log: tuning log, read to resume and appended to: a file of JSON Lines; a folder, or a URL that fsspec opens, which many
            may share, with the kernels beside the records.
        prior: whether a search starts from the cost models that ship with the package; the path of a folder of `tilewright logs
            train`: from those in it, and from what ships where it has none.
        policy: who gets the next slot of time of a search on the host (search/task_scheduler/policies.py), e.g. "ucb": what
            pays most for the whole model; None, and on other targets: operators one after the other.
        until_regret: with a policy, stop when so small a share of the model's latency is expected to be left to gain.
        graphs: "auto", "on" or "off": CUDA targets only, whether calls are launched as CUDA graphs (docs/graphs.md).
        graph_memory: most bytes of GPU memory that the graphs of the function may take, a number or a text such as "64M".
        isolate: compile in a process of its own: a crash of MLIR or LLVM over a model is a BuildError here. With a callback, a
            builder or progress the compile itself stays in this process, after a trial of import and graph passes in another.
        out_of_range: "error", or "fallback" to run shapes outside the declared range too.
        callback: called before and after every graph pass (passes/base.py).
        builder: builds kernels; None: worker processes.
        progress: told how a search goes.
        farm: where a search builds and measures, tw.Farm(...); None: on this machine.
    Raises:
        OptionError: a bad value; names the option and what is legal.
    """

    threads: int | None = None
    seconds: float | None = None
    trials: int | None = None
    max_regret: float = 0.05
    max_kernels: int | None = None
    precision: Precision | str = Precision.F32
    activations: Activations | str = Activations.F32
    deterministic: Deterministic | str = Deterministic.SHAPE
    winograd: bool = True
    traffic: Traffic = ()
    seed: int = 0
    log: Path | str | None = None
    prior: bool | Path | str = True
    policy: str | None = None
    until_regret: float | None = None
    out_of_range: OutOfRange | str = OutOfRange.ERROR
    graphs: Graphs | str = Graphs.AUTO
    graph_memory: int | str = GRAPH_MEMORY
    isolate: bool = field(default=False, compare=False, repr=False)
    callback: Callback | None = field(default=None, compare=False, repr=False)
    builder: Builder | None = field(default=None, compare=False, repr=False)
    progress: Callable[[Any], None] | None = field(default=None, compare=False, repr=False)
    farm: Farm | None = field(default=None, compare=False, repr=False)

    def __new__(cls, *args: Any, **named: Any) -> CompileOptions:
        """OptionError for a name that is no option."""
        for name in named:
            if name not in cls.__dataclass_fields__:
                options = cls.__dataclass_fields__
                raise OptionError(f"options: wanted {', '.join(options)}, got {name!r}; leave it out{perhaps(name, options)}")
        return super().__new__(cls)

    @staticmethod
    def of(value: CompileOptions | Mapping[str, Any] | None) -> CompileOptions:
        """Options from what `compile` takes: themselves, or a dict of them.

        Raises:
            OptionError: neither, or an unknown or bad option.
        """
        if isinstance(value, CompileOptions):
            return value
        if value is not None and not isinstance(value, Mapping):
            raise OptionError(f"options: wanted tw.CompileOptions or a dict such as {{'seconds': 60}}, got {value!r} of type "
                              f"{type(value).__name__}; name the option")
        return CompileOptions(**{str(name): item for name, item in (value or {}).items()})

    def __post_init__(self) -> None:
        for name in ("threads", "trials", "max_kernels"):
            _check_count(name, getattr(self, name), 1)
        _check_count("seed", self.seed, 0)
        if self.seconds is not None:
            _check_real("seconds", self.seconds, "a number of seconds >= 0")
        _check_real("max_regret", self.max_regret, "a fraction >= 0, e.g. 0.05")
        if not isinstance(self.prior, bool):
            object.__setattr__(self, "prior", _prior(self.prior))
        for name in ("winograd", "isolate"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(option(name, getattr(self, name)) + ": wanted True or False; leave it out for the default")
        for name in ("callback", "progress"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise OptionError(option(name, getattr(self, name)) + ": wanted a function; leave it out to watch nothing")
        if self.farm is not None and not isinstance(self.farm, Farm):
            raise OptionError(option("farm", self.farm) + ": wanted tw.Farm(...); leave it out to search on this machine")
        if self.builder is not None and not hasattr(self.builder, "build"):
            raise OptionError(option("builder", self.builder) + ": wanted an object with build(); leave it out for workers")
        if self.policy is not None and self.policy not in policies():
            raise OptionError(option("policy", self.policy) + ": wanted one of " + choices(policies())
                              + "; leave it out for the default")
        if self.until_regret is not None:
            _check_real("until_regret", self.until_regret, "a fraction >= 0, e.g. 0.02")
            if self.policy is None or not policies()[self.policy].believes:
                raise OptionError(option("until_regret", self.until_regret) + " needs a policy that expects gains; wanted one of "
                                  + choices(n for n, p in policies().items() if p.believes))
        object.__setattr__(self, "log", _log("log", self.log))
        object.__setattr__(self, "precision", _member("precision", Precision, self.precision))
        object.__setattr__(self, "activations", _member("activations", Activations, self.activations))
        object.__setattr__(self, "deterministic", _member("deterministic", Deterministic, self.deterministic))
        object.__setattr__(self, "out_of_range", _member("out_of_range", OutOfRange, self.out_of_range))
        object.__setattr__(self, "graphs", _member("graphs", Graphs, self.graphs))
        object.__setattr__(self, "graph_memory", _size("graph_memory", self.graph_memory))
        object.__setattr__(self, "traffic", _traffic(self.traffic))

    @property
    def searches(self) -> bool:
        """Is a search asked for?"""
        return bool(self.seconds or self.trials)

    def check_traffic(self, ranges: ShapeRange) -> None:
        """OptionError when a traffic entry does not name each dim once, or lies outside the range."""
        for dims, weight in self.traffic:
            shape = dict(dims)
            if set(shape) != set(ranges):
                raise OptionError(f"traffic entry {shape} (weight {weight}) names dims {sorted(shape)}; "
                                  f"wanted each of {sorted(ranges)}; name each dim once")
            for name, value in shape.items():
                if not ranges[name].contains(value):
                    raise OptionError(f"traffic entry {shape}: {name} = {value} is outside its range {ranges[name]}")


def _check_count(name: str, value: object, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(option(name, value) + f": wanted an integer >= {least}; leave it out for the default")


def _size(name: str, value: object) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(value)
        return parse_size(str(value))
    except ValueError:
        raise OptionError(option(name, value) + ": wanted a number of bytes, or a text such as '64M' or '1G'; leave it out for "
                          "the default") from None


def _check_real(name: str, value: object, wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise OptionError(option(name, value) + f": wanted {wanted}; leave it out for the default")


def _log(name: str, value: object) -> Path | str | None:
    """A path, or the text of a URL or of a folder that is yet to be made."""
    if value is None or isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value:
        raise OptionError(option(name, value) + ": wanted the path of a file or folder, or a URL; leave it out where nothing is "
                          "to be written")
    return value if "://" in value or value.endswith(os.sep) else Path(value)


def _prior(value: object) -> Path:
    if not isinstance(value, str | Path) or not os.path.isdir(value):
        raise OptionError(option("prior", value) + ": wanted True, False or the path of a folder of `tilewright logs train`; "
                          "leave it out for the models that ship")
    return Path(value)


def _member(name: str, kind: type[E], value: E | str) -> E:
    try:
        return kind(value)
    except ValueError:
        legal = [m.value for m in kind]
        guess = perhaps(value, legal) or "; leave it out for the default"
        raise OptionError(option(name, value) + ": wanted one of " + choices(legal) + guess) from None


def _traffic(entries: Any) -> Traffic:
    wanted = 'wanted pairs (dims, weight) such as ({"B": 1, "S": 57}, 0.2) with weight > 0'
    if not isinstance(entries, Iterable) or isinstance(entries, str | Mapping):
        raise OptionError(f"traffic={entries!r}: {wanted}")
    found = []
    for entry in entries:
        try:
            dims, weight = entry
            shape = tuple((str(n), int(v)) for n, v in dict(dims).items())
        except (TypeError, ValueError):
            raise OptionError(f"traffic entry {entry!r}: {wanted}") from None
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise OptionError(f"traffic entry {entry!r}: {wanted}")
        found.append((shape, float(weight)))
    return tuple(found)
