"""The command `tilewright`, also as `python -m tilewright`. Asking for the version loads nothing else."""

from __future__ import annotations

import sys

from tilewright.version import VERSION


def main() -> int:
    """Run the command line of this process; returns the exit code."""
    if sys.argv[1:] == ["--version"]:
        print(VERSION)
        return 0
    from tilewright.runtime.errors import DeviceError

    try:
        from tilewright.compiler.cli.main import main as run
    except DeviceError as error:  # the platform
        print(f"error: {error}", file=sys.stderr)
        return 1
    return run()


if __name__ == "__main__":
    sys.exit(main())
