"""Mutation operators for tensor cores and the asynchronous proxy: phases, fences, swizzles, descriptors, announced bytes."""

from __future__ import annotations

import re

from emulator.mutation import Mutation, Operator, dropped

_COUNT = r"\s+mbarrier\.init\.[^;]*, (%r\d+);"
_BYTES = r"\s+mbarrier\.arrive\.expect_tx\.[^;]*, (%r\d+);"


def _number(pattern: str, *changes: int) -> Operator:
    """The number in the first group of `pattern` with the bits of each change flipped."""

    def made(line: str) -> list[str]:
        found = re.search(pattern, line)
        if found is None:
            return []
        return [line[: found.start(1)] + str(int(found[1]) ^ c) + line[found.end(1) :] for c in changes]

    return made


def _flip_phase(line: str) -> list[str]:
    """A wait for the other phase."""
    found = re.match(r"(\s*mbarrier\.try_wait\.parity[^,]*, \[[^\]]*\], )(%r\d+)(.*)", line)
    return [f"{{ .reg .b32 turned; xor.b32 turned, {found[2]}, 1; {found[1].strip()} turned{found[3]} }}"] if found else []


def _other_half(line: str) -> list[str]:
    """Fragments with two registers exchanged, or of the untransposed matrix."""
    if "ldmatrix" not in line and "stmatrix" not in line:
        return []
    found = [re.sub(r"\{(%r\d+), (%r\d+)", r"{\2, \1", line)]
    return [*found, line.replace(".trans", "") if ".trans" in line else line.replace(".x4", ".x4.trans")]


def _elect_all(line: str) -> list[str]:
    """Every thread does what one is to do."""
    return [re.sub(r"elect\.sync\s+%r\d+\|(%p\d+), -1;", r"setp.eq.u32 \1, %r1, %r1;", line)] if "elect.sync" in line else []


def _more_in_flight(line: str) -> list[str]:
    """A wait that leaves one more group."""
    return [re.sub(r"(\d);", lambda m: f"{int(m[1]) + 1};", line)] if "wgmma.wait_group" in line else []


def _drop_swizzle(line: str) -> list[str]:
    return [re.sub(r"xor\.b32(\s+%\w+, )(%\w+), .*;", r"mov.b32\1\2;", line)] if "xor.b32" in line else []


def _swap_coordinates(line: str) -> list[str]:
    return [re.sub(r"\{(%r\d+), (%r\d+)\}\]", r"{\2, \1}]", line)] if ".tensor.2d" in line else []


def _other_rank(line: str) -> list[str]:
    """The shared memory of the block itself instead of that of the rank, or an arrival counted twice."""
    found = re.match(r"\s*mapa\.shared::cluster\.u64\s+(%rd\d+), (%rd\d+), %r\d+;", line)
    return [f"mov.b64 {found[1]}, {found[2]};", f"mapa.shared::cluster.u64 {found[1]}, {found[2]}, 0;"] if found else []


def _fewer_blocks(line: str) -> list[str]:
    """A multicast that leaves out a block, or a copy to this one alone."""
    found = re.match(r"(\s*cp\.async\.bulk\.tensor.*)(\.multicast::cluster)(.*), (%rs\d+);", line)
    if found is None:
        return []
    cut = f"{{ .reg .b16 fewer; and.b16 fewer, {found[4]}, 1; {found[1].strip()}{found[2]}{found[3]}, fewer; }}"
    return [cut, f"{found[1]}{found[3]};"]


def _other_operand(pattern: str, kind: str, *changes: str) -> Operator:
    """The register in the last group of `pattern`, of type `kind`, changed by each of `changes` before the instruction."""

    def made(line: str) -> list[str]:
        found = re.fullmatch(pattern, line)
        if found is None:
            return []
        value = found[found.lastindex or 0]
        changed = f"{line[: found.start(found.lastindex or 0)].strip()} other{line[found.end(found.lastindex or 0) :]}"
        return [f"{{ .reg .{kind} other; {c.format(value=value)} {changed} }}" for c in changes]

    return made


def _turn_product(line: str) -> list[str]:
    """Another major axis of a factor, or a product that replaces what is there."""
    found = re.match(r"(\s*wgmma\.mma_async.*\}, %rd\d+, )p(, 1, 1), ([01]);", line)
    if found is not None:  # the left operand is in registers
        return [f"{found[1]}p{found[2]}, {1 - int(found[3])};", f"{found[1]}!p{found[2]}, {found[3]};"]
    found = re.match(r"(\s*wgmma\.mma_async.*\}, %rd\d+, %rd\d+, )p(,[^;]*), ([01]), +([01]);", line)
    if found is None:
        return []
    start, middle, a, b = found.groups()
    return [f"{start}p{middle}, {1 - int(a)}, {b};", f"{start}p{middle}, {a}, {1 - int(b)};", f"{start}!p{middle}, {a}, {b};"]


OPERATORS: dict[str, Operator] = {
    "drop-fence": dropped(r"fence\.|wgmma\.fence"),
    "drop-wgmma-wait": dropped(r"wgmma\.wait"),
    "drop-wgmma-commit": dropped(r"wgmma\.commit"),
    "drop-product": dropped(r"mma\.sync"),
    "elect-all": _elect_all,
    "drop-meeting": dropped(r"bar\.(sync|arrive)"),
    "drop-arrive": dropped(r"mbarrier\.arrive"),
    "drop-cluster-barrier": dropped(r"barrier\.cluster"),
    "other-rank": _other_rank,
    "fewer-blocks": _fewer_blocks,
    "drop-copy": dropped(r"cp\.async\.bulk\.tensor"),
    "change-count": _other_operand(_COUNT, "b32", "add.s32 other, {value}, 1;", "add.s32 other, {value}, -1;"),
    "change-bytes": _other_operand(_BYTES, "b32", "add.s32 other, {value}, 128;", "add.s32 other, {value}, -128;",
                                   "shl.b32 other, {value}, 1;", "shr.u32 other, {value}, 1;"),
    "drop-bulk-wait": dropped(r"cp\.async\.bulk\.(wait|commit)"),
    "drop-registers": dropped(r"setmaxnreg"),
    "turn-product": _turn_product,
    "flip-phase": _flip_phase,
    "weaken-wgmma-wait": _more_in_flight,
    "change-descriptor": _number(r"(46116862933\d{8,})", 1 << 62, 3 << 37, 2),
    "other-half": _other_half,
    "drop-swizzle": _drop_swizzle,
    "swap-coordinates": _swap_coordinates,
}


def mutations(ptx: str) -> list[Mutation]:
    """Every mutant of a module by these operators."""
    found = []
    for number, line in enumerate(ptx.split("\n"), 1):
        for name, operator in OPERATORS.items():
            found += [Mutation(name, number, line, after) for after in operator(line) if after != line]
    return found
