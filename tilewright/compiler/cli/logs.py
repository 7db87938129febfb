"""`tilewright logs ls|top|diff|merge|export|compact|train`: the records of tuning logs, wherever they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.compiler.cli.compile_arguments import Json
from tilewright.compiler.cli.model_files import place_to_write
from tilewright.compiler.cli.output import Output, dims_text
from tilewright.runtime.errors import OptionError

if TYPE_CHECKING:
    from tilewright.search.database.records import TuningLog, TuningRecord

Place = Annotated[str, typer.Argument(help="A log: a file of JSON Lines, a folder or a URL.")]
Workload = Annotated[str | None, typer.Option(help="Only workloads whose key or name begins so.")]
Device = Annotated[str | None, typer.Option(help="Only devices whose name begins so.")]

_US = 1e6


def logs_application() -> typer.Typer:
    """The commands on logs."""
    from tilewright.compiler.cli.logs_train import train_command

    app = typer.Typer(help="Look into tuning logs, compare, merge and compact them, and train cost models on them.",
                      no_args_is_help=True)
    for name, command in (("ls", ls_command), ("top", top_command), ("diff", diff_command), ("merge", merge_command),
                          ("export", export_command), ("compact", compact_command), ("train", train_command)):
        app.command(name)(command)
    return app


def ls_command(place: Place, workload: Workload = None, device: Device = None, json: Json = False) -> None:
    """The workloads and devices of a log: records, failures, and the best time."""
    out = Output(json)
    with out.skipped_lines():
        log = opened(place)
    groups: dict[tuple[str, str], list[TuningRecord]] = {}
    for r in _chosen(log, workload, device):
        groups.setdefault((r.workload, r.device), []).append(r)
    rows = []
    for (key, where), records in sorted(groups.items()):
        failed = sum(1 for r in records if r.error)
        name, kernels = records[0].name, len({r.config for r in records if r.seconds})
        out.event("workload", workload=key, name=name, device=where, records=len(records), kernels=kernels, failed=failed,
                  newest=max(r.when for r in records))
        rows.append((name, key[:12], where, len(records), kernels, failed))
    out.table(place, ("operator", "key", "device", "records", "kernels", "failed"), rows)
    out.event("log", place=place, records=len(log), workloads=len({k for k, _ in groups}), slots=len(log.slots))


def top_command(place: Place, count: Annotated[int, typer.Option(min=1, help="Kernels of a workload and shape.")] = 3,
                workload: Workload = None, device: Device = None, json: Json = False) -> None:
    """The fastest kernels of each workload at each shape."""
    from tilewright.search.database.records import cells

    out = Output(json)
    with out.skipped_lines():
        groups = _by_workload(_chosen(opened(place), workload, device))
    rows = []
    for (_, name, where), records in groups.items():
        shapes: dict[tuple[tuple[str, int], ...], list[tuple[float, str, int]]] = {}
        for c in cells(records):
            shapes.setdefault(c.shape, []).append((c.seconds, c.config, c.threads))
        for shape, found in sorted(shapes.items()):
            for rank, (seconds, config, threads) in enumerate(sorted(found)[:count], 1):
                out.event("kernel", name=name, device=where, dims=dict(shape), rank=rank, seconds=seconds, config=config,
                          threads=threads)
                rows.append((name, dims_text(dict(shape)), rank, seconds * _US, threads, config))
    out.table(place, ("operator", "dims", "rank", "us", "threads", "configuration"), rows)


def diff_command(place: Place, other: Annotated[str, typer.Argument(help="The log to compare with.")], workload: Workload = None,
                 device: Device = None, json: Json = False) -> None:
    """What two logs measured alike: the best time of each shape in the second over that in the first; and what one has alone."""
    out = Output(json)
    with out.skipped_lines():
        both = [_by_workload(_chosen(opened(p), workload, device)) for p in (place, other)]
    rows = []
    for key in sorted({*both[0], *both[1]}):
        best = [_best(b.get(key, [])) for b in both]
        shared = sorted(best[0].keys() & best[1].keys())
        ratios = [best[1][s][0] / best[0][s][0] for s in shared]
        changed = sum(best[0][s][1] != best[1][s][1] for s in shared)
        middle = sorted(ratios)[len(ratios) // 2] if ratios else None
        alone = [len(best[i].keys() - best[1 - i].keys()) for i in range(2)]
        out.event("difference", name=key[1], workload=key[0], device=key[2], shapes=len(shared), ratio=middle, changed=changed,
                  first_alone=alone[0], second_alone=alone[1])
        rows.append((key[1], key[2], len(shared), "" if middle is None else f"{middle:.3f}", changed, *alone))
    columns = ("operator", "device", "shapes in both", "best, second / first", "other kernel", "first alone", "second alone")
    out.table(f"{other} against {place}", columns, rows)


def merge_command(target: Annotated[str, typer.Argument(help="The log that takes the records; made where there is none.")],
                  others: Annotated[list[str], typer.Argument(help="Logs to take from.")], json: Json = False) -> None:
    """Add the records of logs to another one, each once."""
    from tilewright.search.database.stored_log import open_log

    out = Output(json)
    with out.skipped_lines():
        log = open_log(target, writes=True)
        taken = log.merge([opened(p) for p in others])
        log.finish()
    out.event("merged", target=target, records=taken)
    out.text(f"{target}: {taken} records more, {len(log)} in all")


def export_command(place: Place, output: Annotated[Path, typer.Option("-o", "--output", help="A .jsonl or .csv file.")],
                   workload: Workload = None, device: Device = None, json: Json = False) -> None:
    """Write records to one file, JSON Lines or, with .csv at its end, a table."""
    import csv

    from tilewright.search.database.records import TuningLog

    out = Output(json)
    place_to_write(output)
    if output.exists():
        raise OptionError(f"--output {output} is there already; name a new file")
    with out.skipped_lines():
        log = opened(place)
    records = _chosen(log, workload, device)
    if output.suffix == ".csv":
        with output.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(("workload", "name", "family", "config", "dims", "threads", "seconds", "error", "device", "when"))
            for r in records:
                table.writerow((r.workload, r.name, r.family, r.config, dims_text(r.dims), r.threads, r.time if r.seconds else "",
                                r.error, r.device, r.when))
    else:
        kept = TuningLog()
        kept.records = list(records)
        keys = {r.workload for r in records}
        kept.workloads = {k: form for k, form in log.workloads.items() if k in keys}
        made = TuningLog(output, writes=True)
        made.merge([kept])
        made.finish()
    out.event("exported", output=str(output), records=len(records))
    out.text(f"{output}: {len(records)} records")


def compact_command(place: Place, json: Json = False) -> None:
    """Put the segments of a store into one file with an index, so that a workload is found at once."""
    from tilewright.search.database.stored_log import StoredLog

    out, log = Output(json), opened(place)
    if not isinstance(log, StoredLog):
        raise OptionError(f"{place} is one file, which needs no compaction; wanted a folder or a URL")
    done = log.store.compact()
    out.event("compacted", place=place, records=done.records, workloads=done.workloads, absorbed=done.absorbed,
              removed=done.removed, twice=done.twice, unread=done.unread)
    out.text(f"{place}: {done.records} records of {done.workloads} workloads; {done.removed} segments removed, {done.twice} "
             f"lines were there twice, {done.unread} are no records")


def opened(place: str) -> TuningLog:
    """A log that is there."""
    from tilewright.search.database.stored_log import open_log

    if "://" not in place and not Path(place).exists():
        raise OptionError(f"{place}: there is no such file or folder; wanted a log of `tilewright tune`")
    return open_log(place)


def _chosen(log: TuningLog, workload: str | None, device: str | None) -> Sequence[TuningRecord]:
    return [r for r in log.records if (not workload or r.workload.startswith(workload) or r.name.startswith(workload))
            and (not device or r.device.startswith(device))]


def _by_workload(records: Sequence[TuningRecord]) -> dict[tuple[str, str, str], list[TuningRecord]]:
    found: dict[tuple[str, str, str], list[TuningRecord]] = {}
    for r in records:
        found.setdefault((r.workload, r.name, r.device), []).append(r)
    return found


def _best(records: Sequence[TuningRecord]) -> dict[tuple[tuple[str, int], ...], tuple[float, str]]:
    """Shape -> least seconds and the configuration that has them."""
    from tilewright.search.database.records import cells

    found: dict[tuple[tuple[str, int], ...], tuple[float, str]] = {}
    for c in cells(records):
        found[c.shape] = min(found.get(c.shape, (float("inf"), "")), (c.seconds, c.config))
    return found


def families_of_log(records: Sequence[TuningRecord]) -> Counter[str]:
    """Good records of each family."""
    return Counter(r.family for r in records if r.seconds)
