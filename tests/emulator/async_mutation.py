"""Mutation operators for tensor cores and the asynchronous proxy: phases, fences, swizzles, descriptors, announced bytes."""

from __future__ import annotations

import re

from emulator.mutation import Mutation, Operator, opcode


def _drop(pattern: str) -> Operator:
    return lambda line: [""] if re.match(pattern, opcode(line)) else []


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
    if "ldmatrix" not in line:
        return []
    found = [re.sub(r"\{(%r\d+), (%r\d+)", r"{\2, \1", line)]
    return [*found, line.replace(".trans", "") if ".trans" in line else line.replace(".x4", ".x4.trans")]


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


OPERATORS: dict[str, Operator] = {
    "drop-fence": _drop(r"fence\.|wgmma\.fence"),
    "drop-wgmma-wait": _drop(r"wgmma\.wait"),
    "drop-wgmma-commit": _drop(r"wgmma\.commit"),
    "drop-product": _drop(r"mma\.sync"),
    "drop-arrive": _drop(r"mbarrier\.arrive"),
    "drop-cluster-barrier": _drop(r"barrier\.cluster"),
    "other-rank": _other_rank,
    "fewer-blocks": _fewer_blocks,
    "drop-copy": _drop(r"cp\.async\.bulk\.tensor"),
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
