"""The command line that the writers of generated pages share: write the page, or compare it with what would be written."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run(writer: str, about: str | None, page: Path, text: Callable[[], str], argv: Sequence[str] | None = None) -> int:
    """Writes `text()` to `page`; with `--check` in `argv` writes nothing and returns 1 where the page differs.

    Args:
        writer: the module that is run, as `python -m` takes it.
        about: what `--help` tells of it.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    checked = parser.parse_args(argv).check
    made, name = text(), page.relative_to(ROOT)
    if checked:
        same = page.exists() and page.read_text() == made
        print(f"{name} is up to date" if same else f"{name} differs: run `python -m {writer}`")
        return 0 if same else 1
    page.write_text(made)
    return 0
