"""What a graph of a program holds: nodes in the order of the launches, for the widest call that it is to serve.

Both sides of a branch on shapes have nodes, a loop on shapes has them for so many turns, and a call for as many launches as any
kernel of its table has; what a call leaves out is disabled. Branches and loops on data are held in a Way of control_table.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.runtime.cuda.control_table import CONTROL_KEY, WHILE_TURNS, Way
from tilewright.runtime.cuda.graph_table import COPY_KEY, node_key
from tilewright.runtime.device import KERNELS_PER_CALL, NEXT_LAUNCH
from tilewright.runtime.gpu.control_kernels import COUNTS, ControlKernel
from tilewright.runtime.program.data_branches import CONDITIONAL_SINCE, ELSE_SINCE, few_turns, is_short
from tilewright.runtime.program.program import Program
from tilewright.runtime.program.steps import CopyStep, IfStep, InsertStep, LaunchStep, LoopStep, Step, all_steps
from tilewright.runtime.program.tensor_map import MAP_BYTES


@dataclass(frozen=True)
class Launched:
    """A launch that was seen while a call ran without a device. words: its slots; maps: slot -> tensor map; entries: slot ->
    what is passed by value. grid: None: empty."""

    key: int
    record: int
    grid: tuple[int, int, int] | None
    words: tuple[int, ...]
    maps: Mapping[int, bytes] = field(default_factory=dict)
    entries: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class NodePlan:
    """A kernel node. words: 8-byte words that its parameters and tensor maps take at most. seen: None: the call left it out."""

    key: int
    words: int
    seen: Launched | None


@dataclass(frozen=True)
class ConditionalPlan:
    """A conditional node behind the node that sets its condition; bodies: one, or two of an IF node with ELSE."""

    loops: bool
    bodies: tuple[tuple[Item, ...], ...]


Item = NodePlan | ConditionalPlan


def nodes_of(items: Sequence[Item]) -> Iterator[NodePlan]:
    """The kernel nodes, those of bodies in their place."""
    for item in items:
        if isinstance(item, NodePlan):
            yield item
        else:
            for body in item.bodies:
                yield from nodes_of(body)


def tree_of(program: Program) -> tuple[Step, ...]:
    """What the host program does, also where it has no branch or loop."""
    return program.tree or tuple(LaunchStep((number,)) for number, call in enumerate(program.calls)
                                 if call.launch < 0 or call.launch != program.calls[number - 1].launch or not number)


def ways_of(program: Program, version: int) -> tuple[dict[int, Way], str]:
    """How a graph holds each branch and loop on data with a driver of this version; why there is no graph, or ""."""
    found: dict[int, Way] = {}
    for step in all_steps(program.tree):
        if not isinstance(step, IfStep | LoopStep) or step.site < 0:
            continue
        found[step.site] = Way.PREDICATED
        if isinstance(step, IfStep):
            if not is_short(step) and version >= CONDITIONAL_SINCE:
                found[step.site] = Way.CONDITIONAL if version >= ELSE_SINCE or not step.otherwise else Way.TWO_NODES
        elif few_turns(step) is not None:
            continue
        elif step.varies:
            return found, "a loop whose end depends on data launches what differs from turn to turn"
        elif version < CONDITIONAL_SINCE:
            return found, f"a loop whose end depends on data needs a CUDA driver of {CONDITIONAL_SINCE // 1000}.4 or later"
        else:
            found[step.site] = Way.CONDITIONAL
    return found, ""


class Widen:
    """The nodes of a graph, from the launches of one call. turns: of the loops on shapes so far, by the number of the loop in the
    tree; loops that ran more often are given twice the room."""

    def __init__(self, program: Program, ways: Mapping[int, Way], turns: dict[int, int]) -> None:
        self._program, self._ways, self._turns = program, ways, turns
        self._seen: Sequence[Launched] = ()
        self._at = 0
        self._numbers = {id(step): n for n, step in enumerate(all_steps(program.tree)) if isinstance(step, LoopStep)}

    def plan(self, seen: Sequence[Launched]) -> tuple[Item, ...]:
        """The nodes. What was seen and is not in the tree, copies behind it, comes last."""
        self._seen, self._at = seen, 0
        prelude = node_key(len(self._program.calls) * KERNELS_PER_CALL)
        items: list[Item] = [self._node(prelude, 0)] if self._program.prelude is not None else []
        items += self._steps(tree_of(self._program))
        rest = [NodePlan(e.key, _words_of(e), e) for e in seen[self._at :]]
        return (*items, *rest)

    def _steps(self, steps: Sequence[Step]) -> tuple[Item, ...]:
        return tuple(item for step in steps for item in self._step(step))

    def _step(self, step: Step) -> Sequence[Item]:
        if isinstance(step, LaunchStep):
            return [self._node(node_key(call * KERNELS_PER_CALL + number * NEXT_LAUNCH), self._room(call))
                    for call in step.calls[:1] for number in self._launches(call)]
        if isinstance(step, CopyStep):
            return [self._node(COPY_KEY, 4) if step.site < 0 else self._control(ControlKernel.SETTLE)]
        if isinstance(step, InsertStep):
            return []  # programs of hosts alone have them
        if isinstance(step, IfStep):
            return self._branch(step)
        return self._shape_loop(step) if step.site < 0 else self._data_loop(step)

    def _branch(self, step: IfStep) -> Sequence[Item]:
        if step.site < 0:
            return [*self._steps(step.then), *self._steps(step.otherwise)]
        way, test = self._ways[step.site], [self._control(ControlKernel.TEST)]
        if way is not Way.PREDICATED:
            test.append(self._control(ControlKernel.CONDITION))
        then = self._steps(step.then)
        second = [self._control(ControlKernel.TEST)] if step.otherwise else []
        if way is Way.TWO_NODES:
            second.append(self._control(ControlKernel.CONDITION))
        otherwise = self._steps(step.otherwise)
        if way is Way.PREDICATED:
            return [*test, *then, *second, *otherwise]
        if way is Way.TWO_NODES:
            return [*test, ConditionalPlan(False, (then,)), *second, ConditionalPlan(False, (otherwise,))]
        return [*test, ConditionalPlan(False, (then, (*second, *otherwise)) if otherwise else (then,))]

    def _shape_loop(self, step: LoopStep) -> Sequence[Item]:
        items: list[Item] = []
        found = 0
        while True:
            before, turn = self._at, self._steps((*step.test, *step.body))
            if self._at == before and found >= self._room_of(step, found):
                return items
            items += turn
            found += 1

    def _room_of(self, step: LoopStep, turns: int) -> int:
        """Turns that a loop is given nodes for: a power of two no less than those of any call so far."""
        number, room = self._numbers[id(step)], 1
        while room < turns:
            room *= 2
        self._turns[number] = max(self._turns.get(number, 1), room)
        return self._turns[number]

    def _data_loop(self, step: LoopStep) -> Sequence[Item]:
        begin = self._control(ControlKernel.BEGIN)
        if self._ways[step.site] is Way.PREDICATED:
            items = [begin, *self._test(step)]
            for _ in range(few_turns(step) or 0):
                items += [*self._steps(step.body), *self._test(step)]
            return items
        items = [begin, *self._test(step), *self._steps(step.body), *self._test(step), self._control(ControlKernel.CONDITION)]
        body: list[Item] = []
        for _ in range(WHILE_TURNS - 1):
            body += [*self._steps(step.body), *self._test(step)]
        return [*items, ConditionalPlan(True, ((*body, self._control(ControlKernel.CONDITION)),))]

    def _test(self, step: LoopStep) -> list[Item]:
        return [*self._steps(step.test), self._control(ControlKernel.TURN)]

    def _control(self, kernel: ControlKernel) -> NodePlan:
        return self._node(CONTROL_KEY | kernel, COUNTS[kernel])

    def _node(self, key: int, words: int) -> NodePlan:
        """The node of the next launch, where that has this key."""
        if self._at < len(self._seen) and self._seen[self._at].key == key:
            self._at += 1
            seen = self._seen[self._at - 1]
            return NodePlan(key, max(words, _words_of(seen)), seen if seen.grid is not None else None)
        return NodePlan(key, words, None)

    def _launches(self, call: int) -> list[int]:
        """Which of its kernel's launches each launch of a call is; all its kernels are launched where it goes by block tables."""
        kernels = self._program.tables[self._program.calls[call].table].kernels
        if self._program.calls[call].over:
            return [0] * len(kernels)
        return list(range(max(len(k.launches()) for k in kernels)))

    def _room(self, call: int) -> int:
        kernels = self._program.tables[self._program.calls[call].table].kernels
        return max(len(k.params) + MAP_BYTES // 8 * sum(p.kind == "tensor_map" for p in k.params) for k in kernels)


def _words_of(seen: Launched) -> int:
    return len(seen.words) + MAP_BYTES // 8 * len(seen.maps)
