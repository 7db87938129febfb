"""Launches that follow each other and compute rows from rows, done strip by strip where that is predicted to pay.

A product and what reads its rows, or what makes the rows of a product, or two products: a work unit then owns a strip of rows and
takes it through all of them, and what lies between stays in the cache of its core. What that costs is predicted from bytes by the
level of memory that they come from, so it pays from a number of rows on, below which the launches are as they were. A prediction
that says nearly the same of both does not tell which is faster: what gains less than a share of the time is left to a search.
Of convolutions, and the copies of images around them, a strip is one image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

from tilewright.compiler.host.host_plan import HostPlan
from tilewright.compiler.host.plan_steps import (
    Launch,
    Place,
    PlannedCall,
    Strips,
    Temp,
    places_beside_calls,
)
from tilewright.compiler.host.row_cuts import RowCut, cut_of
from tilewright.passes.codegen.index import Index
from tilewright.passes.partition.cost import Machine
from tilewright.passes.partition.strip_choice import StripChoice
from tilewright.passes.spaces.workload import Kind, Workload, told_once
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.program.arena_plan import plan as arena_plan
from tilewright.runtime.shape import Expr

SIZES = (64, 128, 256)  # rows of a strip
EACH = 8  # strips that there are for each thread that the machine has, at least
SHORT = 128  # rows of them, at least, where they have no fewer anyway
IDLE_PARTS = 8  # parts of the time of images, of which a thread may have nothing to do for one
LONGEST = 5  # launches of one strip
LONGEST_OF_IMAGES = 8
LAST_PARTS = 4  # of the last cache, of which the cores share one: what the calls read and write lies there too, and others' data
IMAGE_ROWS = 128  # of every product, at least, beyond which constant columns are read as fast for any number of rows
IMAGES = tuple(1 << n for n in range(1, 11))  # at which it is predicted of images
GAIN = 0.002  # share of the time that has to be predicted to be saved
ROWS = tuple(1 << n for n in range(10, 21))  # at which it is predicted
Cuts = dict[int, RowCut]  # by number of the call
Users = dict[Place, set[int]]


def least_gain(choice: StripChoice) -> float:
    """Share of the time that has to be predicted to be saved; "widely", what is not predicted to lose either."""
    return {StripChoice.PREDICTED: GAIN, StripChoice.WIDELY: -GAIN}.get(choice, inf)


@dataclass(frozen=True)
class Costs:
    """What decides whether there are strips. threads: of the machine; near: bytes of the second cache of a core; last: of the
    last one, which all cores have."""

    machine: Machine = field(default_factory=Machine)
    choice: StripChoice = StripChoice.PREDICTED
    threads: int = 1
    near: int = 1 << 20
    last: int = 1 << 24

    @staticmethod
    def of(machine: Machine, choice: StripChoice, limits: HostLimits) -> Costs:
        return Costs(machine, choice, limits.cores, limits.l2, limits.l3)

    def level(self, each: int) -> int:
        """Bytes of the cache that a strip of so many stays in: the second one, or of the last one what a core counts on."""
        return next((level for level in (self.near, self.last // (LAST_PARTS * self.threads)) if each <= level), 0)


_USUAL = Costs()


def margin(size: int, rows: Index, threads: Index) -> Index:
    """Not below 0 where so many threads share the rows evenly enough in strips of so many: there are EACH for every thread, or of
    images no thread has nothing to do for more than one part of IDLE_PARTS."""
    if size == 1:
        return rows * IDLE_PARTS - rows.ceildiv(threads) * threads * (IDLE_PARTS - 1)
    return rows - threads * (EACH * min(SHORT, size))


def with_strips(plan: HostPlan, costs: Costs = _USUAL) -> HostPlan:
    """The plan, whose temporaries that are alive during a strip's launches do not share memory, but for what is in the thread's
    workspace then. No result of it may lie in the memory of an argument, whose other rows may still be read."""
    found = strips_of(plan, costs)
    if not found:
        return plan
    spans = [(plan.moments[s.launches[0].calls[0]], plan.moments[s.launches[-1].calls[-1]]) for s in found]
    wider, local = [], {place.name for s in found for place in s.local}
    for temporary in plan.temporaries:
        first, last = temporary.birth, temporary.death
        for low, high in spans if temporary.name not in local else ():
            if first <= high and last >= low:
                first, last = min(first, low), max(last, high)
        wider.append(replace(temporary, birth=first, death=last))
    return replace(plan, strips=found, arena=arena_plan(wider, plan.bounds))


def strips_of(plan: HostPlan, costs: Costs = _USUAL) -> list[Strips]:
    """What of a plan is done by strips, in order: the most calls by images, then launches that are predicted to gain most."""
    if costs.choice is StripChoice.NEVER:
        return []
    users, found, taken = _users(plan), list[Strips](), set[int]()
    for run in _runs(plan.steps):
        for begin in range(len(run) - 1):
            found += _candidates(plan, run[begin : begin + LONGEST], users, costs)
            found += _of_images(plan, run[begin : begin + LONGEST_OF_IMAGES], users, costs)
    chosen = []
    for strips in sorted(found, key=lambda s: (-len(s.cuts) if s.size == 1 else 0, -s.gain)):
        if taken.isdisjoint(strips.cuts):
            taken.update(strips.cuts)
            chosen.append(strips)
    return sorted(chosen, key=lambda s: s.launches[0].calls)


def _users(plan: HostPlan) -> Users:
    """The calls that read or write each temporary; -1 stands for what is no call."""
    found: Users = {}
    for number, call in enumerate(plan.calls):
        for operand in call.operands:
            found.setdefault(operand.place, set()).add(number)
    for place in places_beside_calls(plan.steps):
        found.setdefault(place, set()).add(-1)
    return found


def _runs(steps: Sequence[object]) -> Iterator[list[Launch]]:
    """Launches with nothing between them."""
    run: list[Launch] = []
    for step in steps:
        if isinstance(step, Launch):
            run.append(step)
        else:
            yield run
            run = []
    yield run


def _candidates(plan: HostPlan, launches: Sequence[Launch], users: Users, costs: Costs) -> Iterator[Strips]:
    """Strips that begin with the first of the launches, by their last one and their size."""
    products = [plan.calls[n] for launch in launches for n in launch.calls if plan.calls[n].workload.kind is Kind.CONTRACTION]
    for rows in dict.fromkeys(d for call in products[:1] for d in call.dims):
        most = rows.bounds(plan.bounds)[1]
        if rows.constant is not None or most < ROWS[0]:
            continue
        cuts: Cuts = {}
        for count, launch in enumerate(launches, 1):
            own = {n: cut_of(plan.calls[n].workload, plan.calls[n].dims, rows) for n in launch.calls}
            if None in own.values():
                break
            cuts |= {n: cut for n, cut in own.items() if cut is not None}
            local = _local(plan, cuts, users)
            if count == 1 or not local:
                continue
            for size in SIZES:
                least, gain = _pays(plan, cuts, local, size, [n for n in ROWS if n <= most], costs)
                if least:
                    yield Strips(tuple(launches[:count]), rows, size, least, dict(cuts), local, gain)


def _of_images(plan: HostPlan, launches: Sequence[Launch], users: Users, costs: Costs) -> Iterator[Strips]:
    """The same by images, of launches with convolutions among them. Copies that lie in a cache gain more than is predicted, so
    that it is enough if nothing is lost, where what lies between stays in it of one image and not, in those of all cores, of all
    images; filters take half of the second one, or all of it where an image lies in the last. A prediction takes all of that to
    be a call's own, and is not asked there. All else that they read and write is the caller's: parts of ResNet-50 took 1.00 to
    1.04 of the time so."""
    calls = [plan.calls[n] for launch in launches for n in launch.calls]
    if not any(call.workload.windows for call in calls):
        return
    products = [call for call in calls if call.workload.kind is Kind.CONTRACTION]
    rows = products[0].dims[0] if products and products[0].dims else Expr.of(1)
    most = rows.bounds(plan.bounds)[1]
    if rows.constant is not None or most < max(IMAGES[0], costs.threads):
        return
    cuts: Cuts = {}
    for count, launch in enumerate(launches, 1):
        own = {n: cut_of(plan.calls[n].workload, plan.calls[n].dims, rows, images=True) for n in launch.calls}
        if None in own.values() or any(_rows_of_image(plan.calls[n].workload) < IMAGE_ROWS for n in launch.calls):
            return
        cuts |= {n: cut for n, cut in own.items() if cut is not None}
        filters = sum(sum(_shared(plan.calls[n].workload)) for n in cuts)
        local = _local(plan, cuts, users)
        each, places = sum(local.values()), {o.place for n in cuts for o in plan.calls[n].operands}
        level = costs.level(each)
        if filters * (2 if each <= costs.near else 1) > costs.near or count == 1 or not 0 < each <= level or \
                any(isinstance(p, Temp) and p not in local for p in places) or \
                not any(plan.calls[n].workload.windows for n in cuts):
            continue
        looked_at = [n for n in IMAGES if n <= most and n * each > level * costs.threads]
        widely = replace(costs, choice=StripChoice.WIDELY)
        least = _pays(plan, cuts, local, 1, looked_at, widely)[0] if each <= costs.near else min(looked_at, default=0)
        if least:
            _, gain = _pays(plan, cuts, local, 1, looked_at[-1:], widely)
            yield Strips(tuple(launches[:count]), rows, 1, least, dict(cuts), local, gain)


def _rows_of_image(workload: Workload) -> int:
    """Rows of a product of one image; as many as are asked for of anything else."""
    if workload.kind is not Kind.CONTRACTION:
        return IMAGE_ROWS
    return prod(loop.extent.constant or 1 for loop in workload.loops if loop.role == "m")


def _local(plan: HostPlan, cuts: Cuts, users: Users) -> dict[Temp, int]:
    """Temporaries that the calls make and that they alone read, all rows by rows; bytes of a row."""
    found: dict[Temp, int] = {}
    for number, cut in cuts.items():
        call = plan.calls[number]
        for i, operand in enumerate(call.operands):
            if isinstance(operand.place, Temp) and i >= len(call.workload.inputs) and users[operand.place] <= cuts.keys():
                found[operand.place] = cut.operands[i]
    uses = [(o, cut.operands[i]) for n, cut in cuts.items() for i, o in enumerate(plan.calls[n].operands)]
    whole = {o.place for o, size in uses if o.place in found and (size != found[o.place] or o.offset != Expr.of(0))}
    return {place: size for place, size in found.items() if place not in whole}


def _pays(plan: HostPlan, cuts: Cuts, local: dict[Temp, int], size: int, looked_at: Sequence[int],
          costs: Costs) -> tuple[int, float]:
    """From how many rows on strips of so many are predicted to pay, 0 for never, and by which share of the time then."""
    least, gain = 0, 0.0
    for rows in reversed(looked_at):
        before = sum(_seconds(plan.calls[n], cut, rows, rows, local, costs.machine) for n, cut in cuts.items())
        after = sum(_seconds(plan.calls[n], cut, size, rows, local, costs.machine) for n, cut in cuts.items()) * rows / size
        if before - after < least_gain(costs.choice) * before:
            break
        least, gain = rows, (before - after) / before
    return least, gain


def _seconds(call: PlannedCall, cut: RowCut, rows: int, whole: int, local: dict[Temp, int], machine: Machine) -> float:
    """Predicted seconds of a call for so many rows, of all `whole` rows of the model, on one thread. A product moves what it
    reads and writes while it multiplies; work on rows waits for what passes between the calls."""
    kept, product = sum(local.values()) * rows if rows < whole else 0, call.workload.kind is Kind.CONTRACTION
    moved = sum(size / _speed(machine, size) for size in _shared(call.workload))
    between = 0.0
    for operand, each in zip(call.operands, cut.operands, strict=True):
        if operand.place in local:
            between += each * rows / _speed(machine, max(kept, each * rows))
        else:
            moved += each * rows / _speed(machine, each * whole)
    work = _operations(call.workload) * cut.each * rows / (machine.products if product else machine.operations)
    return machine.launch + (max(moved + between, work) if product else max(moved, work) + between)


@told_once
def _operations(workload: Workload) -> int:
    """Of one row of it."""
    return workload.flops.evaluate({workload.dims[0]: 1})


@told_once
def _shared(workload: Workload) -> list[int]:
    """Bytes of each operand that has no rows."""
    operands = [o for o in workload.inputs if not any(extent.symbols for extent in o.dims)]
    return [prod(extent.evaluate({}) for extent in o.dims) * o.dtype.bytes for o in operands]


def _speed(machine: Machine, size: float) -> float:
    """Bytes a second of what lies in so many bytes."""
    return next((speed for most, speed in machine.caches if size <= most), machine.memory)
