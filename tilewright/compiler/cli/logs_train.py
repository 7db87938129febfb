"""`tilewright logs train`: cost models of the kernel families from logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tilewright.compiler.cli.compile_arguments import Json
from tilewright.compiler.cli.output import Output
from tilewright.runtime.errors import OptionError


def train_command(
    logs: Annotated[list[str], typer.Argument(help="Logs: files of JSON Lines, folders or URLs.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A folder for the models, one a family.")],
    force: Annotated[bool, typer.Option(help="Write models also where the present one is better.")] = False,
    json: Json = False,
) -> None:
    """Train a cost model for each kernel family of the logs, and write those that are no worse than what searches start from now.

    Each is judged on workloads that it was not trained on, and on the same workloads the model that it would replace, the one in
    the folder, else the one that ships with the package, and what arithmetic predicts without a model. `tilewright tune
    --prior-from FOLDER` starts from the folder.
    """
    from tilewright.compiler.builder.codegen import limits
    from tilewright.compiler.cli.logs import opened
    from tilewright.runtime.limits import HostLimits
    from tilewright.runtime.target import Target
    from tilewright.search.libraries import load_libraries
    from tilewright.search.prior.shipped import SUFFIX, prior_in, shipped
    from tilewright.search.prior.train import digest_of, groups_of, trained

    out = Output(json)
    load_libraries()
    here = limits(Target.parse("host"))
    assert isinstance(here, HostLimits)
    with out.skipped_lines():
        groups = groups_of([opened(place) for place in logs], here)
    if not groups:
        raise OptionError(f"{', '.join(logs)}: wanted measurements of kernels to train on, and there are none; `tilewright tune` "
                          "with the same --log takes some")
    output.mkdir(parents=True, exist_ok=True)
    rows = []
    for family, found in groups.items():
        before = prior_in(output, family) or shipped(family)
        result, model = trained(family, found, before)
        is_written = model is not None and (result.accepted or force)
        if model is not None and is_written:
            path = output / (family + SUFFIX)
            model.save(path)
            result = msgspec.structs.replace(result, digest=digest_of(path.read_bytes()))
            (output / f"{family}.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
        out.event("trained", written=is_written, **msgspec.to_builtins(result))
        own, old, plain = result.own, result.before, result.arithmetic
        scores = (f"{own.order:.3f}" if own else "", f"{own.regret:.2%}" if own else "", f"{old.regret:.2%}" if old else "none",
                  f"{plain.regret:.2%}" if plain else "")
        rows.append((family, result.records, result.workloads, *scores, "written" if is_written else "kept as it was"))
    out.table(str(output), ("family", "records", "workloads", "pairs in order", "regret of 4 tried", "before", "by arithmetic",
                             "model"), rows)
