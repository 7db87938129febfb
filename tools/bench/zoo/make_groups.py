"""The table of operator groups made from models: what they compile to, equal groups once.

    python -m tools.bench groups MODELS.py [model.pt2 ...] --names 'bert*,unet' --exports /tmp/exports --table groups.jsonl

Every model is exported by the front end and cut (tools/bench/zoo/cut.py). Groups that differ only in sizes count as one, of which
the largest stands in the table, at those of its shapes that torch runs. Of those that compute by the same operators in other
forms, three stand there if they hold a contraction, else one; those of integers alone do not, unless they look up.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tools.bench import command
from tools.bench.zoo.group_table import TABLE, VIEWS, Group, Value, operator_of, read, write

_FORMS = 3  # of contractions that have one name
_WORDS = 3


def main(argv: Sequence[str] | None = None) -> int:
    parser = command.parser("groups", __doc__)
    parser.add_argument("models", nargs="+", type=Path, help=".pt2 files, Python files with MODELS, tables to join")
    parser.add_argument("--names", default="*", help="patterns of the models of Python files")
    parser.add_argument("--exports", type=Path, default=Path("exports"), help="folder that keeps exported models")
    parser.add_argument("--table", type=Path, default=TABLE)
    args = parser.parse_args(argv)
    args.exports.mkdir(exist_ok=True)
    found: dict[str, list[tuple[str, Group]]] = {}
    for path in args.models:
        for name, group in _kept(path) if path.suffix == ".jsonl" else _groups(path, args.names, args.exports):
            found.setdefault(group.form(), []).append((name, group))
    kept = []
    for group in chosen(found.values()):
        whole, error = tried(group)
        if error:
            print(f"{group.models[0]}: left out: {group.code}: {error}", file=sys.stderr)
        else:
            kept.append(whole)
    table = named(kept)
    write(args.table, iter(table))
    print(f"{len(table)} groups of {len(found)} forms, of {len({n for f in found.values() for n, _ in f})} models: {args.table}")
    return 0


def _kept(path: Path) -> Iterable[tuple[str, Group]]:
    """The groups of a table that was made before."""
    for group in read(path):
        yield from ((name, group) for name in group.models)


def _groups(path: Path, names: str, exports: Path) -> Iterable[tuple[str, Group]]:
    from tools.bench.zoo.cut import Cut
    from tools.bench.zoo.exported import programs
    from tools.bench.zoo.program_groups import groups

    for name, program in programs(path, names, exports):
        refused: Counter[str] = Counter()
        for group, reason in groups(Cut(program)):
            if group is None:
                refused[reason] += 1
            else:
                yield name, group
        for reason, count in refused.items():
            print(f"{name}: {count} left out: {reason}", file=sys.stderr)


def tried(group: Group) -> tuple[Group, str]:
    """The group with those of its shapes that torch runs, and why it runs none, or could not export it; "" where it does."""
    import torch

    from tools.bench.zoo.group_module import draw, module

    if not group.points:
        return group, "no shape of its range is small enough"
    if any(e.constant is None and e.linear is None for v in group.values().values() for e in v.dims):
        return group, "an extent of its inputs follows from several dims, which torch.export does not take"
    run, why = [], ""
    for point in group.points:
        try:
            with torch.no_grad():
                module(group)(*(torch.from_numpy(draw(v, point, n)) for n, v in group.values().items()))
            run.append(point)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError, SyntaxError, AssertionError) as error:
            why = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return msgspec.structs.replace(group, points=tuple(run)), "" if run else why


def chosen(forms: Iterable[Sequence[tuple[str, Group]]]) -> list[Group]:
    """The groups that the table holds, with the models that have their form: the largest of each form, of the forms of one name
    those that most models have."""
    by_name: dict[str, list[Group]] = {}
    for form in forms:
        largest = max((g for _, g in form), key=_elements)
        if all(v.below is not None for v in largest.values().values()) and not any(map(_is_lookup, largest.code)):
            continue
        models = tuple(dict.fromkeys(n for n, _ in form))
        by_name.setdefault(_words(largest), []).append(msgspec.structs.replace(largest, models=models))
    table = []
    for found in by_name.values():
        most = _FORMS if any(map(_is_contraction, found[0].code)) else 1
        table += sorted(found, key=lambda g: -len(g.models))[:most]
    return table


def named(groups: Iterable[Group]) -> list[Group]:
    """The groups with names of their operators, numbered where several have the same, in the order of names."""
    seen: Counter[str] = Counter()
    table = []
    for group in groups:
        name = _words(group)
        seen[name] += 1
        table.append(msgspec.structs.replace(group, name=name if seen[name] == 1 else f"{name}_{seen[name]}"))
    return sorted(table, key=lambda g: g.name)


def _is_contraction(line: str) -> bool:
    return any(w in operator_of(line) for w in ("linear", "mm", "conv", "attention"))


def _is_lookup(line: str) -> bool:
    return operator_of(line) == "embedding"


def _elements(group: Group) -> int:
    return sum(_product(Value.parse(t)) for t in group.weights.values())


def _product(value: Value) -> int:
    total = 1
    for extent in value.dims:
        total *= extent.evaluate({})
    return total


def _words(group: Group) -> str:
    """The operators that compute, the first few by name."""
    calls = [operator_of(line) for line in group.code]
    words = [c for c in calls if c not in VIEWS] or calls
    extra = f"_and_{len(words) - _WORDS}" if len(words) > _WORDS else ""
    return "_".join(words[:_WORDS]) + extra

