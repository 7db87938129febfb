"""Every check of the checkout, in order; stops at the first that fails.

    python tools/check.py [--fast]      --fast leaves the tests out
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def commands(fast: bool) -> list[list[str]]:
    """The checks as command lines, cheapest first. The tools come from this interpreter's environment."""
    tools = Path(sys.executable).parent
    checks = [
        [str(tools / "ruff"), "check", "."],
        [str(tools / "lint-imports"), "--no-cache"],
        [sys.executable, "-m", "mypy"],
    ]
    tests = [[sys.executable, "-m", "pytest", "-q", "-n", "2"]]
    return checks if fast else checks + tests


def main() -> int:
    """Run the checks; the exit code is that of the first that fails, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="leave the tests out")
    for command in commands(parser.parse_args().fast):
        shown = " ".join([Path(command[0]).name, *command[1:]])
        print(f"== {shown}", flush=True)
        start = time.perf_counter()
        code = subprocess.run(command, cwd=ROOT).returncode
        if code:
            print(f"== {shown}: failed with exit code {code}", file=sys.stderr)
            return code
        print(f"== {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
