"""The command `tilewright`, also as `python -m tilewright`. Asking for the version loads nothing else."""

from __future__ import annotations

import sys

from tilewright.distribution import import_part
from tilewright.version import VERSION


def main() -> int:
    """Run the command line of this process; returns the exit code."""
    if sys.argv[1:] == ["--version"]:
        print(VERSION)
        return 0
    from tilewright.runtime.errors import DeviceError

    try:
        run = import_part("compiler.cli.main", "the command tilewright").main
    except (DeviceError, ImportError) as error:  # the platform; what is not installed
        print(f"error: {error}", file=sys.stderr)
        return 1
    return int(run())


if __name__ == "__main__":
    sys.exit(main())
