"""Configuration for upstream lit: `lit tests/lit`. pytest runs the same files without it."""

import sys
from pathlib import Path

import lit.formats

config.name = "tilewright"  # noqa: F821 - lit defines it
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir", ".py"]  # noqa: F821
config.excludes = ["lit.cfg.py"]  # noqa: F821
config.test_source_root = str(Path(__file__).parent)  # noqa: F821
config.environment["PYTHONPATH"] = str(Path(__file__).parents[2])  # noqa: F821
config.environment["PATH"] = f"{Path(sys.executable).parent}:{config.environment['PATH']}"  # noqa: F821
