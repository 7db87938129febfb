"""`tilewright verify` and `tilewright sign`: may a saved model be trusted, and by whom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.compiler.cli.output import JSON_HELP, Output

if TYPE_CHECKING:
    from tilewright.runtime.program.artifact import Artifact

_KINDS = {"program": "programs", "code": "objects of code", "constant": "constants", "llvm": "texts of LLVM IR"}


def verify_command(
    file: Annotated[Path, typer.Argument(help="A saved model (.tw).", exists=True, dir_okay=False)],
    key: Annotated[
        list[Path] | None, typer.Option(help="A public key of Ed25519 (PEM) that has to have signed it; repeatable: any of them.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Check all of a saved model, and run none: hashes, programs against their code, signatures. Exits with 1 if one is wrong."""
    from tilewright.runtime.program.artifact import Artifact

    out = Output(json)
    opened = Artifact(file, keys=key or None)
    signer = opened.signer
    with out.progress(f"reading {file}"):
        opened.verify_all()
    signers = _right_signers(opened)
    counts = dict.fromkeys(_KINDS, (0, 0))
    for section in opened.manifest.sections:
        kind = section.name.partition("/")[0]
        number, size = counts.get(kind, (0, 0))
        counts[kind] = number + 1, size + section.size
    targets = [g.target for g in opened.manifest.groups]
    out.event("verified", file=str(file), format=opened.manifest.schema, targets=targets, bytes=opened.stored.size,
              sections={kind: number for kind, (number, _) in counts.items()}, signers=signers,
              trusted=signer.key if signer else None)
    held = ", ".join(f"{n} {_KINDS.get(kind, kind)} ({size / 1024:.0f} KiB)" for kind, (n, size) in counts.items() if n)
    signed = f"signed by {', '.join(signers)}" if signers else "not signed"
    out.text(f"{file} is whole: format {opened.manifest.schema}, for {', '.join(targets)}\n"
             f"hashes match: manifest, {held}\n"
             f"every program is the one that its code was compiled for\n"
             f"{signed}{', which is trusted' if signer else ''}")


def sign_command(
    file: Annotated[Path, typer.Argument(help="A saved model (.tw).", exists=True, dir_okay=False)],
    key: Annotated[Path, typer.Option(help="A private key of Ed25519 (PEM), as `openssl genpkey -algorithm ed25519` makes one.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to write it; in its place if left out.")] = None,
    json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False,
) -> None:
    """Check all of a saved model and sign it. Needs the extra `sign` (cryptography)."""
    from tilewright.runtime.program.artifact import Artifact
    from tilewright.runtime.program.artifact_writer import sign_artifact

    out, target = Output(json), output or file
    made = sign_artifact(Artifact(file), target, key)
    out.event("signed", file=str(target), key=made.key)
    out.text(f"{target}: signed by {made.key}")


def _right_signers(opened: Artifact) -> list[str]:
    """The keys of all signatures. SignatureError where one is not right; OptionError where `cryptography` is not installed."""
    from tilewright.runtime.program.signing import altered, is_right

    signatures = opened.signatures()
    for signature in signatures:
        if not is_right(signature, opened.digest):
            raise altered(signature, str(opened.path))
    return [s.key for s in signatures]
