"""What the commands for one GPU share: records that are written as they come, what a run is, and building or running."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tools.bench import command


class Records(list[dict[str, Any]]):
    """Records so far. path: a JSON Lines file to append to, or None."""

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self._path = path

    def add(self, made: dict[str, Any]) -> None:
        """Keep a record, print it and write it."""
        self.append(made)
        print(json.dumps(made), flush=True)
        command.append(self._path, [made])

    def begin(self, torch: Any, **also: Any) -> None:
        """Add what this run is: when, on which device, with which versions and arguments (of files only the names), and what else
        is told.
        """
        from tilewright.runtime.cuda.cuda_device import properties_of

        self.add({"record": "run", "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "device": properties_of(0),
                  **also, "python": platform.python_version(), "torch": torch.__version__,
                  "command": [Path(a).name if Path(a).is_absolute() else a for a in sys.argv[1:]]})


def build_or_run(folder: Path | None, build: Callable[[Path], Iterable[Path]], run: Callable[[], str]) -> int:
    """Print the summary of a run, or with a folder build into it and print each file that was made; the exit status."""
    if folder is None:
        print(run())
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    for path in build(folder):
        print(path, flush=True)
    return 0
