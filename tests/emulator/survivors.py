"""Why mutants that nothing notices are no mistakes: what each kind of them does instead, by operator and instruction."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from emulator.mutation import Mutation


@dataclass(frozen=True)
class Reason:
    """`kernels`, `before` and `after` are patterns of the configuration and of the instruction; `place` is of _PLACES."""

    operators: tuple[str, ...]
    kernels: str
    before: str
    after: str
    why: str
    place: str = "anywhere"


def _places(mutation: Mutation, ptx: str) -> set[str]:
    """Where an instruction is: before the first copy, in a kernel without any, behind the last barrier of its kernel, where there
    are no steps, just before another one; whether its result is compared and counted up, and nothing else; whether it is a branch
    that asks if the block has a tile; whether products of warpgroups were waited for since warps met."""
    lines = ptx.split("\n")
    start = max(i for i, line in enumerate(lines[: mutation.line or 1]) if line.startswith("{") or not i)
    end = next((i for i, line in enumerate(lines) if i > start and line.startswith("}")), len(lines))
    found = {"anywhere"}
    copies = [i for i in range(start, end) if "cp.async.c" in lines[i] and "commit" not in lines[i]]
    if not copies or mutation.line - 1 < copies[0]:
        found.add("before copies")
    if not copies:
        found.add("no copies")
    if not any("bar.sync" in lines[i] for i in range(mutation.line, end)):
        found.add("behind barriers")
    if mutation.line < end:
        found.add("before " + lines[mutation.line].strip().split("\t")[0].split(" ")[0])
    if _asks_for_a_tile(lines[start:end], mutation.before):
        found.add("tile")
    last = next((lines[i] for i in range(mutation.line - 2, start, -1) if "wait_group" in lines[i] or "bar.warp" in lines[i]), "")
    if "wgmma.wait_group" in last:
        found.add("behind products")
    if "setp" in mutation.before and f"@{mutation.before.split()[1].rstrip(',')} bra" in ptx:
        found.add("branch")
    if _without_steps(lines[start:end], mutation.line - 1 - start):
        found.add("no steps")
    made = re.match(r"\s+[\w.]+\s+(%\w+),", mutation.before)
    if made:
        uses = [line for i, line in enumerate(lines[start:end], start + 1)
                if i != mutation.line and re.search(rf"{made[1]}\b", line) and not line.lstrip().startswith(".reg")]
        counted = re.compile(rf"\s+(setp\.|add\.s\d+\s+{made[1]}, {made[1]}, \d+;)")
        if all(counted.match(line) for line in uses):
            found.add("compared")
    return found


def _without_steps(lines: list[str], at: int) -> bool:
    """Is the line in a block that one jump alone leads to, from where a number is 0, and behind which that number is asked again,
    to leave out the loop that many steps long?"""
    label = next((i for i in range(at, 0, -1) if lines[i].startswith("$L")), 0)
    name = re.escape(lines[label].rstrip(":"))
    jumps = [i for i, line in enumerate(lines) if re.search(rf"\sbra(\.uni)?\s+{name};", line)]
    last = next((line for line in lines[at:] if re.match(r"\s+(@|bra)|\$", line)), "")
    then = re.fullmatch(r"\s+bra\.uni\s+(\$\w+);", last) or re.fullmatch(r"(\$\w+):", last)
    if len(jumps) != 1 or "bra.uni" not in lines[label - 1] or then is None or f"{then[1]}:" not in lines:
        return False
    taken = re.match(r"\s+@(%p\d+) bra", lines[jumps[0] - 1])
    asked = taken and re.search(rf"setp\.ne\.b32\s+{taken[1]}, (%r\d+), 0;", "\n".join(lines))
    behind = list(itertools.takewhile(lambda line: "bra" not in line, lines[lines.index(f"{then[1]}:") + 1 :]))
    return bool(asked and re.search(rf"setp\.eq\.b32\s+%p\d+, {asked[1]}, 0;", "\n".join(behind)))


def _asks_for_a_tile(lines: list[str], branch: str) -> bool:
    """Does a branch compare the number of the block or of its cluster with a number of tiles?"""
    taken = re.match(r"\s+@(%p\d+) bra", branch)
    text = "\n".join(lines)
    asked = taken and re.search(rf"setp\.ge\.s32\s+{taken[1]}, (%r\d+), %r\d+;", text)
    moved = asked and re.search(rf"shr\.u32\s+{asked[1]}, (%r\d+), \d;", text)
    number = (moved or asked or [""] * 2)[1]
    return bool(number and re.search(rf"mov\.u32\s+{number}, %ctaid\.x;", text))


_SIMT, _MMA, _SPLIT, _WGMMA, _ATTENTION = r"simt\{", r"\bmma\{", r"\bmma\{.*(split|cluster)-k=", r"wgmma\{", r"gpu_attention\{"
_MMA_ROWS = r"mma_rows\{"
_GROUPS = r"wgmma_attention\{"
_ANY_WGMMA = rf"{_WGMMA}|{_GROUPS}"
_COPIED, _EIGHTS = r"wgmma\{.*copied", r"(wgmma|\bmma|mma_rows)\{(?!.*vec=1)"
_TURNS = r"wgmma\{.*pingpong"
_VECTOR = r"(simt\{(?!.*vec=1)|gpu_pointwise$|gpu_pointwise\{(?!.*vec=1))"

REASONS = (
    Reason(("drop-wait", "weaken-wait"), rf"{_SIMT}|{_MMA}", r"wait_group\s+0", "",
           "the copies still in flight bring empty steps behind k, which nothing reads", "behind barriers"),
    Reason(("drop-predicate", "invert-predicate"), r"(simt|gpu_pointwise|\bmma|gemv)\{.*index=64", r"@%p\d+ bra", "",
           "either way divides right: in 32 bits where both numbers fit, else in 64", "before copies"),
    Reason(("move-bound",), r"(simt|gpu_pointwise|\bmma)\{.*index=64", r"setp\.ne\.b64", r", 1;",
           "numbers below 2^32 are divided in 64 bits, to the same quotient", "before copies"),
    Reason(("drop-predicate",), rf"{_SIMT}|{_MMA}|{_MMA_ROWS}", r"@%p\d+ bra", r"\s*bra|^$",
           "a shortcut where k is empty: the copies that it leaves out are empty too", "before copies"),
    Reason(("change-addend",), _VECTOR, r"add\.s(32|64)\s.*, (31|15|7|3);", r", (30|14|6|2);",
           "the extent is a multiple of 4 by its guard, so that one less rounds up to the same number of tiles"),
    Reason(("change-addend", "change-shift"), _SIMT, r"(add\.s(32|64)\s.*, (7|15)|shr\.u(32|64)\s.*, (3|1));", r", (8|16|2|0);",
           "counts more steps than k needs: they are empty"),
    Reason(("move-bound",), rf"{_SIMT}|{_MMA}", r"setp\.ne\.b32\s.*, \d+;", r", \d+;",
           "one more step, which lies behind k and is empty", "branch"),
    Reason(("change-addend",), _VECTOR, r"or\.b32\s.*, (8|16);", r", (9|17);",
           "a bound of k, which is a multiple of 4 by its guard: an odd position below it has its successor below it too"),
    Reason(("change-addend",), _VECTOR, r"add\.s32\s.*, (8|16);", r", (9|17);",
           "a bound of k, which is a multiple of 4 by its guard: an odd position below it has its successor below it too",
           "compared"),
    Reason(("change-addend",), _VECTOR, r"or\.b32\s.*, -64;", "",
           "the lowest bit of a column that is a multiple of 4 is not asked"),
    Reason(("move-bound",), r"gpu_rows", r"setp\.(ne|eq)\.b32\s.*, 0;", r", 1;",
           "every thread of the row holds the sum; any may store it"),
    Reason(("invert-predicate",), r"gpu_rows.*blocks", r"@%p\d+ bra", "",
           "every thread of the row holds the sum: the others store it, all the same", "behind barriers"),
    Reason(("change-addend",), r"gpu_rows", r"add\.s32\s+(%r\d+), \1, 64;", r", 63;",
           "results are computed and stored twice, to the same values", "behind barriers"),
    Reason(("change-addend", "change-shift", "change-stride"), r"gpu_rows.*blocks",
           r"add\.s32\s.*, (127|3);|shr\.u32\s.*, [12];|and\.b32\s.*, 2147483584;", r", (128|4|0|1|2147483585);",
           "the part of a block is longer, and those of the blocks behind it are shorter"),
    Reason(("move-bound", "drop-predicate"), rf"gpu_rows|{_MMA_ROWS}", r"(setp\.(ge|lt)\.s32|@%p\d+ bra)", "",
           "rows and columns behind the end are clamped to the last one, for which the same values are stored twice"),
    Reason(("change-addend",), _MMA_ROWS, r"(or\.b32\s.*, 48|add\.s32\s.*, 64);", r", (49|65);",
           "k is a multiple of 8 by its guard, and so is what is compared with it but for less than 8"),
    Reason(("change-addend",), _MMA_ROWS, r"add\.s32\s.*, -1;", r", 0;",
           "a row behind the end is read where the block keeps one, and stored nowhere", "behind barriers"),
    Reason(("drop-barrier",), r"wgmma\{", r"bar\.warp\.sync", "",
           "the warp has met at the products since it read the slab that it writes now", "behind products"),
    Reason(("shrink-buffer",), "", "", "", "the last bytes are the gap behind the last row of a tile"),
    Reason(("widen-access",), rf"{_SIMT}|{_MMA}|{_ATTENTION}", r"st\.global\.b32", "",
           "the neighbour is overwritten by the next store of the same thread"),
    Reason(("drop-wait", "weaken-wait", "drop-commit"), _MMA, "", "", "elements go through registers: there are no copies",
           "no copies"),
    Reason(("change-addend",), rf"{_MMA}|{_ATTENTION}", r"add\.s(32|64)\s.*, -(256|512|1024);", r", -(255|511|1023);",
           "a multiple of the length of a stage, of which only the bit of the stage is used"),
    Reason(("drop-swizzle", "change-shift", "change-addend", "change-stride"), _SPLIT, r"(xor|shl|and|or)\.b32", "",
           "where a copy would go in a part of k that has no steps", "no steps"),
    Reason(("change-shift", "change-addend"), _SPLIT, r"(shr\.u32\s.*, 1|add\.s32\s.*, 63);", r", (0|64);",
           "the part of k of a block is longer, and those of the blocks behind it are shorter"),
    Reason(("change-addend", "change-shift"), r"gemv\{.*(split|cluster)-k=", r"(add\.s32\s.*, (63|127);|shr\.u32\s.*, 1;)",
           r", (64|128|0);", "the part of k of a block is longer, and those of the blocks behind it are shorter"),
    Reason(("change-addend",), r"gemv\{(?!.*vec=1)", r"add\.s32\s.*, (63|127);", r", (62|126);",
           "k, or the columns, are a multiple of 4 or 8 by their guard, so that one less rounds up to the same number"),
    Reason(("change-addend",), r"gemv\{", r"or\.b32\s.*, -(64|128);", r", -(63|127);",
           "counts the rounds of a loop, by steps of 64 or 128"),
    Reason(("change-addend",), r"gemv\{", r"add\.s32\s.*, 64;", r", 65;",
           "counts the rounds of a loop, by steps of 64, of which there are two", "before setp.lt.u32"),
    Reason(("drop-predicate",), r"wgmma\{.*cluster-k=", r"@%p\d+ bra", r"^$",
           "asks for the first chunk of a thread, which every thread has", "before add.s32"),
    Reason(("drop-arrive",), r"wgmma\{.*blocks=0", r"mbarrier\.arrive", "",
           "the last stage of the only tile is given back to nobody"),
    Reason(("drop-predicate", "invert-predicate"), r"wgmma\{.*blocks=0", r"@%p\d+ bra", "",
           "the last stage of the only tile is given back to nobody", "before setp.eq.b32"),
    Reason(("change-addend",), r"wgmma\{.*blocks=0", r"add\.s32\s.*, 1;", "",
           "the last stage of the only tile is given back to nobody", "before selp.b32"),
    Reason(("change-addend",), r"\bmma\{.*cluster-k=", r"add\.s32\s+(%r\d+), \1, 1024;", r", 1025;",
           "a multiple of the length of a stage, of which only the bit of the stage is used"),
    Reason(("change-addend",), r"\bmma\{.*cluster-k=", r"add\.s32\s.*, 32;", r", 33;",
           "a bound of k, which is a multiple of 8 by its guard: an odd position below it has its successor below it too",
           "before mov.b32"),
    Reason(("move-bound",), r"\bmma\{.*cluster-k=", r"setp\.ne\.b32\s.*, 0;", r", 1;",
           "another block of the cluster stores the sums, all the same", "before or.pred"),
    Reason(("change-addend",), r"wgmma\{.*cluster-k=", r"add\.s32\s.*, 127;", r", 128;",
           "the part of k of a block is longer, and those of the blocks behind it are shorter"),
    Reason(("change-addend",), r"wgmma\{.*cluster-k=", r"add\.s32\s.*, 256;", r", 255;",
           "the first thread comes back once more, for the chunk that the others, each one earlier, leave over"),
    Reason(("change-addend",), r"wgmma\{.*cluster-k=", r"add\.s32\s.*, 2048;", r", 204[79];",
           "the chunks of a row are dealt to its threads in another order, or the same: the lowest 3 bits are not used"),
    Reason(("change-stride",), _ANY_WGMMA, r"and\.b32\s.*, 96;", r", 97;",
           "half of the lanes leave before one of the others is elected"),
    Reason(("change-addend",), rf"{_ATTENTION}|{_GROUPS}", r"add\.s32\s.*, -1;", r", 0;",
           "a row behind the last one is counted in: its keys come by a step more, which is masked for the others"),
    Reason(("change-addend", "change-shift"), rf"{_ATTENTION}|{_GROUPS}", r"(add\.s32\s.*, (15|63)|shr\.u32\s.*, 4);",
           r", (16|64|3);",
           "more steps, all of whose keys are masked"),
    Reason(("change-shift",), rf"{_ATTENTION}|{_GROUPS}", r"shr\.u32\s.*, (4|6);", r", (5|7);",
           "steps none of whose keys is masked are computed as if some were"),
    Reason(("swap-operands",), _ATTENTION, r"sub\.s32", "",
           "a difference of steps, of which only the lowest bit is used, the stage: that of the opposite is the same"),
    Reason(("change-stride",), _ATTENTION, r"and\.b32\s.*, 31;", r", 30;", "the lowest bit is shifted out"),
    Reason(("move-bound",), r"gpu_attention\{.*split", r"setp\.(lt|ge)\.s32", r"setp\.(le|gt)\.s32",
           "the first key of the next part is copied a step ahead, which nothing reads"),
    Reason(("move-bound",), _ANY_WGMMA, r"setp\.(eq|ne)\.b32\s.*, 0;", r", 1;", "another thread speaks for all"),
    Reason(("move-bound",), _COPIED, r"setp\.ge\.s32", r"setp\.gt\.s32",
           "rows and columns behind the last ones are prepared and cut off by the copy"),
    Reason(("change-addend", "change-shift"), _COPIED, r"(add\.s32\s+(%r\d+), \2, 32|shr\.u32\s.*, 2);", r", (31|3);",
           "the number of a row, for the bound of rows alone: what is prepared behind the last row is cut off by the copy"),
    Reason(("change-addend",), _COPIED, r"add\.s32\s.*, 63;", r", 64;",
           "a row or column of tiles more where the extent is a multiple of 64: it is computed and cut off by the copy"),
    Reason(("change-addend",), _COPIED, r"or\.b32\s.*, 32;", r", 31;",
           "a box that begins where the columns end is copied, and cut off"),
    Reason(("change-addend", "change-shift"), _MMA, r"(add\.s32\s.*, 31|shr\.u32\s.*, 5);", r", (32|4);",
           "counts more steps than k needs: they are empty"),
    Reason(("change-addend",), _EIGHTS, r"or\.b32\s.*, (8|32|64);", r", (9|33|65);",
           "a bound of k or of columns, multiples of 8 by their guard: an odd position below it has its successor below it too"),
    Reason(("change-addend",), _EIGHTS, r"add\.s32\s.*, (3|31|63|127);", r", (2|30|62|126);",
           "the extent is a multiple of 8 by its guard, so that one less rounds up to the same number of tiles"),
    Reason(("change-addend",), _WGMMA, r"(add\.s32\s.*, 32|or\.b32\s.*, -32);", r", (33|-31);",
           "counts the rounds of a loop, by steps of 32; what is prepared behind the last row is cut off by the copy"),
    Reason(("drop-predicate",), r"wgmma\{.*(blocks=1\b|blocks=2 .*cluster-m=2)", r"@%p\d+ bra", r"^$",
           "the only block or cluster has a tile", "tile"),
    Reason(("drop-predicate",), _COPIED, r"@%p\d+ bra", r"^$",
           "threads that have started no copy wait for none", "before cp.async.bulk.wait_group.read"),
    Reason(("drop-predicate",), _COPIED, r"@%p\d+ bra", r"^$",
           "rows and columns behind the last ones are prepared and cut off by the copy", "before ld.shared.v4.b32"),
    Reason(("change-stride", "change-addend"), _ANY_WGMMA,
           r"(mul\.lo|add)\.s32\s.*, (4096|8192|12288|16384|24576|32768|40960|49152|57344);",
           r", (4097|8193|12289|16385|24577|32769|40961|49153|57345);",
           "the lowest 4 bits of an address are no part of a descriptor"),
    Reason(("drop-predicate",), _COPIED, r"@%p\d+ bra", r"^$",
           "rows and columns behind the last ones are prepared and cut off by the copy", "before mov.b64"),
    Reason(("change-stride",), _TURNS, r"and\.b32\s.*, 127;", r", 126;", "two threads start the same copy of the same results"),
    Reason(("drop-predicate", "invert-predicate"), _TURNS, r"@%p\d+ bra", "",
           "more threads, or others, start the same copy of the same results", "before div.u32"),
    Reason(("invert-predicate",), _TURNS, r"@%p\d+ bra", "", "the two warpgroups change places", "before bra.uni"),
    Reason(("change-shift",), _TURNS, r"shl\.b32\s.*, 14;", r", 13;",
           "the second buffer of a warpgroup, which a tile of 64 columns does not use, is where the other one has its first"),
    Reason(("change-addend",), _TURNS, r"add\.s32\s.*, 4;", r", [35];", "another barrier, which nobody else uses"),
    Reason(("drop-predicate",), _TURNS, r"@%p\d+ bra", r"^$", "the second warpgroup never has the first tile", "before bar.sync"),
    Reason(("drop-predicate",), _TURNS, r"@%p\d+ bra", r"^$",
           "who has no further tile tells the other one, which waits for nothing", "before bar.arrive"),
    Reason(("change-count",), _WGMMA, r"mbarrier\.init", "",
           "the last one of a ring is where warps arrive in their first step: nothing waits for it",
           "before fence.mbarrier_init.release.cluster;"),
    Reason(("drop-registers",), _WGMMA, r"setmaxnreg\.inc", "",
           "ptxas gives the code that multiplies no more registers than were asked for: it is slower"),
    Reason(("drop-fence",), _GROUPS, r"wgmma\.fence", "",
           "the fence in front of the scores of the step is behind the last write of the exponentials too"),
    Reason(("invert-predicate",), _GROUPS, r"@%p\d+ bra", "",
           "the other lanes arrive, an odd number of phases in all: keys are replaced when the values of the step before are "
           "released, which is behind their product", "before mul.wide.u32"),
    Reason(("change-count",), _GROUPS, r"mbarrier\.init", "",
           "queries are brought once: nothing waits for their stage to be empty"),
    Reason(("drop-registers",), _GROUPS, r"setmaxnreg\.inc", "",
           "ptxas gives the code that multiplies no more registers than were asked for: it is slower"),
    Reason(("drop-zero-fill",), _SIMT, "", "", "what lies behind the last feature is read, multiplied and not stored"),
    Reason(("change-stride",), _SIMT, r"mul\.lo\.s16\s.*, 171;", r"172",
           "a reciprocal of 3: the quotients of these numbers are the same"),
)


def why_equivalent(config: str, mutation: Mutation, ptx: str) -> str:
    """The reason that covers a surviving mutant of a kernel; empty where none does."""
    places = _places(mutation, ptx)
    for r in REASONS:
        if (mutation.operator in r.operators and re.search(r.kernels, config) and re.search(r.before, mutation.before)
                and re.search(r.after, mutation.after) and r.place in places):
            return r.why
    return ""
