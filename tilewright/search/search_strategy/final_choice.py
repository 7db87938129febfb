"""The end of a search: the chosen kernels are measured where they are chosen, and the regret of the choice where nothing was."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from tilewright.passes.spaces.family_registry import config_text
from tilewright.runtime.program.certificate import Certificate, Expected
from tilewright.runtime.program.dispatch import Leaf, select
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.search.database.records import cells
from tilewright.search.protocols import RunnerInTurns
from tilewright.search.search_strategy.certify import Entry, Rounds, certify, errors, intervals, measure_entry, one_by_one
from tilewright.search.search_strategy.comparing import compare, rivals_at
from tilewright.search.search_strategy.ledger import SearchLedger
from tilewright.search.search_strategy.outcome import Tuned
from tilewright.search.search_strategy.reckoner import Wanted
from tilewright.search.search_strategy.selection import Selection, verified
from tilewright.search.space.dense import dense_symbols
from tilewright.search.space.shapes import Dims
from tilewright.search.space.task import Untuned

TURNS = 3  # measurements of a chosen kernel and of the untuned one in its place
_MOST_TURNS = 200  # at a held-out shape, while there is time
_MORE = 6  # of them at a time
_PASSES, _FEWEST = 3, 2  # times the first rounds of a shape that there is to be time for, with so many shapes at least
_SETTLED = 0.05  # what may be open of the worst regret, above which there are more rounds


def best_known(ledger: SearchLedger) -> Tuned:
    """The dispatch that the measurements so far support; with none, the defaults of the family."""
    return _tuned(ledger, ledger.selection())


def _tuned(ledger: SearchLedger, chosen: Selection | None) -> Tuned:
    if chosen is None:
        configs, root = ledger.untuned()
        return Tuned(tuple(configs), root, _named(ledger, certify((), np.zeros(1), np.ones(1), 0), len(configs)))
    certificate = _compared(ledger, chosen, certify((), chosen.regrets, np.array(ledger.task.points.weights), 0))
    configs = tuple(ledger.lattice.configs[c] for c in chosen.configs)
    predicted = tuple(float(s) for s in chosen.seconds)
    named = _named(ledger, certificate, len(configs), _expected(ledger, chosen))
    return Tuned(configs, chosen.root, named, ledger.task.points.shapes, predicted)


def certified(ledger: SearchLedger) -> Tuned:
    """`best_known` after its kernels were measured where it chooses them, and its regret at held-out shapes, as many of them as
    the rest of the budget allows; the defaults of the family where it does not even allow to choose."""
    ledger.certify_from_now()
    if not ledger.time.affords("selection"):
        return _tuned(ledger, None)
    ledger.verify_from_now()
    before, begin = ledger.trials, ledger.clock()
    verify(ledger)
    ledger.verified += ledger.trials - before
    ledger.certify_from_now()
    if any(r.beside for r in ledger.records):
        ledger.compared = ledger.clock() - begin
        ledger.learn(anew=True)
    chosen = ledger.selection()
    found = _tuned(ledger, chosen)
    if chosen is None or not ledger.task.held_out:
        return found
    entries, weights, rivals = _hold_out(ledger, chosen), np.array(ledger.task.points.weights), ledger.options.rivals
    certificate = certify(entries, chosen.regrets, weights, rivals)
    named = _named(ledger, _compared(ledger, chosen, certificate), len(found.configs), found.certificate.expected)
    untuned, known = [e.untuned for e in entries if e.untuned is not None], chosen.untuned > 0
    if (entries and not untuned) or not known.any():
        return replace(found, certificate=named)
    best = chosen.seconds / (1 + chosen.regrets)
    usual = certify(untuned, np.maximum(chosen.untuned / best - 1, 0)[known], weights[known], rivals)
    told = _expected_untuned(ledger, found)
    return replace(found, certificate=named, usual=_named(ledger, usual, len(ledger.untuned()[0]), told))


def verify(ledger: SearchLedger) -> None:
    """Measure each chosen kernel in turns with what would run untuned, at the shapes it is chosen for, until the choice
    stands: all once, then again; those first where most is to gain. Where the runner times kernels beside each other, the choice
    goes by that (judged.py), and by a model that knows all that was measured, so that a log alone tells it again."""
    runner = ledger.measurer.context.runner
    if isinstance(runner, RunnerInTurns):
        compare(ledger, runner)
        return
    shapes, measurer = verified(ledger.task), ledger.measurer
    order = [shapes[i] for i in np.random.default_rng(ledger.options.seed).permutation(len(shapes))]
    while ledger.verifying:
        chosen = ledger.selection(hopeful=True)
        if chosen is None:
            return
        before = ledger.trials
        usual = ledger.untuned()
        rivals = {shape: rivals_at(ledger, chosen, usual, shape) for shape in order}
        taken = [measurer.turns(c, s, t) for s, both in rivals.items() for c, t in both if len(both) > 1]
        wanted = min(TURNS, 1 + min(taken, default=0))
        gain = dict(zip(ledger.task.points.shapes, chosen.untuned / chosen.seconds, strict=True))
        groups = []
        for shape in sorted(order, key=lambda s: -gain[s]):
            turns = wanted if len(rivals[shape]) > 1 else 1
            groups.append([(c, shape, t) for c, t in rivals[shape] if measurer.turns(c, shape, t) < turns])
        ledger.take_all("verifying", groups, lambda: ledger.verifying)
        ledger.outdate()
        if ledger.trials == before:
            return


def _hold_out(ledger: SearchLedger, chosen: Selection) -> list[Entry]:
    held_out, options = ledger.task.held_out, ledger.options
    evidence = ledger.reckoner.held_out(ledger.records)

    def going() -> bool:
        return ledger.budget.seconds is None or (ledger.spent < 1 and ledger.time.affords())

    def seconds(leaf: Leaf, shape: Dims) -> float:
        """Of a lattice number (as `kernel`) at a shape, measured now."""
        record = ledger.measurer.measure(ledger.lattice.configs[leaf.kernel], shape, leaf.threads, again=True)
        return float("inf") if record is None else record.time

    runner = ledger.measurer.context.runner
    beside = isinstance(runner, RunnerInTurns)
    usual, more = ledger.untuned(), _unmeasured(ledger) if beside else {}
    compared = []
    for number, shape in enumerate(held_out):
        leaf = chosen.leaf(dict(shape))
        threads = leaf.threads or options.threads
        rivals = [Leaf(c, t) for c, t in evidence.fastest(number, options.rivals)]
        symbols = dense_symbols(ledger.task.workload, dict(shape))
        rivals += [Leaf(c, threads) for c, kernel in more.items() if kernel.legal(symbols)]
        plain = _plain_at(ledger, usual, shape)
        compared.append((shape, Leaf(chosen.configs[leaf.kernel], threads), plain, rivals))
    if ledger.takes_groups:
        return _rounds_at_once(ledger, compared, going)
    alone = one_by_one(seconds, going)

    def rounds_of(leaves: Sequence[Leaf], shape: Dims, turns: int) -> Sequence[Sequence[float]]:
        """Beside each other where the runner takes that and all of them run."""
        if not isinstance(runner, RunnerInTurns):
            return alone(leaves, shape, turns)
        variants = [(ledger.lattice.configs[x.kernel], x.threads) for x in leaves]
        return ledger.measurer.in_turns(runner, variants, shape, turns) or (alone(leaves, shape, turns) if going() else ())

    taken = [Rounds(shape, dispatched, rivals, plain) for shape, dispatched, plain, rivals in compared]
    left, longest, number, first, again = ledger.time.seconds, 0.0, 0, 0.0, 0.0
    while going():  # few shapes that are known are better than many that are not: others wait for what is left
        least = None if ledger.budget.seconds is None else _once(taken[:number], beside) or _least_known(taken[:number])
        begin = ledger.clock()
        fits = number < _FEWEST or not beside or _PASSES * longest * (number + 1) <= left
        if number < len(taken) and (fits or least is None):
            taken[number].take(rounds_of, TURNS)
            number += 1
            longest, first = max(longest, ledger.clock() - begin), first + ledger.clock() - begin
            ledger.report("certifying")
        elif least is None or (again > first and not beside) or not least.take(rounds_of, _MORE if beside else 1):
            break  # what is left goes to other operators
        else:
            again += ledger.clock() - begin
    return [e for rounds in taken if (e := rounds.entry) is not None]


def _unmeasured(ledger: SearchLedger) -> dict[int, MicroKernel]:
    """What promises most, where a short search measured too few kernels for others to be rivals, as far as it can be built."""
    lacking, evidence = ledger.options.rivals + 1 - len(ledger.kernels()), ledger.evidence
    if lacking <= 0 or ledger.budget.seconds is None or not evidence.curves or not ledger.time.affords("proposing"):
        return {}
    wanted = Wanted(evidence.best, evidence.importance, frozenset(ledger.taken()), lacking)
    with ledger.time.part("proposing"):
        numbers = [p.config for p in ledger.reckoner.propose(ledger.records, wanted)]
    ledger.measurer.build([ledger.lattice.configs[n] for n in numbers])
    built = ((n, ledger.measurer.built.get(ledger.lattice.texts[n])) for n in numbers)
    return {n: found.kernel for n, found in built if found is not None and found.kernel is not None}


def _once(taken: Sequence[Rounds], beside: bool) -> Rounds | None:
    """One that was measured one time alone, which does not tell how much it differs from time to time: where kernels are timed
    beside each other each time is short, so all shapes get a second one before the worst is looked at."""
    return next((r for r in taken if (e := r.entry) is not None and len(e.seconds) > 1 and e.times < 2), None) if beside else None


def _least_known(taken: Sequence[Rounds]) -> Rounds | None:
    """The shape that may have the worst regret, which is measured again as long as much is open; None where that is settled."""
    known = {r.shape: r for r in taken if (e := r.entry) is not None and len(e.seconds) > 1}
    entries = [e for r in known.values() if (e := r.entry) is not None]
    low, high = intervals(entries)[1]
    open_ = [e for e in entries if e.turns < _MOST_TURNS]
    if high - low <= _SETTLED or not open_:
        return None
    reached = {e.shape: e.regret + 2 * float(error) for e, error in zip(entries, errors(entries), strict=True)}
    return known[max(open_, key=lambda e: reached[e.shape]).shape]


def _rounds_at_once(ledger: SearchLedger, compared: Sequence[tuple[Dims, Leaf, Leaf | None, Sequence[Leaf]]],
                    going: Callable[[], bool]) -> list[Entry]:
    """The rounds of each shape as one request."""
    configs = ledger.lattice.configs
    timed = [list(dict.fromkeys((d, *([] if p is None else [p]), *rivals))) for _, d, p, rivals in compared]
    groups = [[(configs[x.kernel], c[0], x.threads) for _ in range(TURNS) for x in leaves]
              for c, leaves in zip(compared, timed, strict=True)]
    found = []
    for (shape, dispatched, plain, rivals), taken in zip(compared, ledger.take_all("certifying", groups, going), strict=True):
        if taken is not None:
            entry = measure_entry(shape, dispatched, rivals, _told(taken), TURNS, plain)
            found += [] if entry is None else [entry]
    return found


def _told(seconds: Sequence[float]) -> Callable[[Leaf, Dims], float]:
    """What was measured already, in the order in which it is asked for."""
    left = iter(seconds)
    return lambda leaf, shape: next(left)


def _plain_at(ledger: SearchLedger, usual: Untuned, shape: Dims) -> Leaf | None:
    """What runs untuned at a shape, by its lattice number; None where the space does not have it."""
    configs, root = usual
    leaf = select(root, dict(shape))
    number = ledger.lattice.number(config_text(configs[leaf.kernel]))
    return None if number is None else Leaf(number, leaf.threads or ledger.options.threads)


def _named(ledger: SearchLedger, certificate: Certificate, kernels: int, expected: tuple[Expected, ...] = ()) -> Certificate:
    environment = ledger.measurer.context.environment
    return msgspec.structs.replace(certificate, workload=ledger.task.workload.key, device=environment.device, kernels=kernels,
                                   trials=ledger.trials, configurations=len(ledger.lattice), when=environment.clock(),
                                   expected=expected)


def _compared(ledger: SearchLedger, chosen: Selection, certificate: Certificate) -> Certificate:
    """With what was timed beside what runs untuned."""
    usual, judged = ledger.untuned(), ledger.judged()
    shapes = {s for told in judged.found.values() for s in told} & set(ledger.task.points.shapes)
    replaced = sum(len(rivals_at(ledger, chosen, usual, s)) > 1 for s in shapes)
    return msgspec.structs.replace(certificate, compared=len(shapes), replaced=replaced, comparing=ledger.compared)


def _expected_untuned(ledger: SearchLedger, found: Tuned) -> tuple[Expected, ...]:
    """`Expected` of the choice, were the default kernels chosen."""
    measured = {(c.config, c.shape, c.threads): c.seconds for c in cells(ledger.records)}
    configs, root = ledger.untuned()
    told = []
    for shape, e in zip(found.shapes, found.certificate.expected, strict=True):
        leaf = select(root, dict(shape))
        here = (config_text(configs[leaf.kernel]), shape, leaf.threads or ledger.options.threads)
        told.append(msgspec.structs.replace(e, predicted=e.default, measured=measured.get(here, 0.0), ratio=0.0, most=0.0))
    return tuple(told)


def _expected(ledger: SearchLedger, chosen: Selection) -> tuple[Expected, ...]:
    """What `explain` tells of the choice at each point of the task."""
    measured = {(c.config, c.shape, c.threads): c.seconds for c in cells(ledger.records)}
    usual, judged, found = ledger.untuned(), ledger.judged(), []
    for s, shape in enumerate(ledger.task.points.shapes):
        leaf = chosen.leaf(dict(shape))
        here = (ledger.lattice.texts[chosen.configs[leaf.kernel]], shape, leaf.threads or ledger.options.threads)
        seconds = float(chosen.seconds[s])
        plain = select(usual[1], dict(shape))
        pair = (here[0], here[2]), (config_text(usual[0][plain.kernel]), plain.threads or ledger.options.threads)
        told = judged.at(pair, shape)
        found.append(Expected(tuple(v for _, v in shape), seconds, measured.get(here, 0.0),
                              seconds / (1 + float(chosen.regrets[s])), float(chosen.untuned[s]),
                              *((math.exp(told.mean), math.exp(told.most)) if told and math.isfinite(told.most) else ())))
    return tuple(found)
