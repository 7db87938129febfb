"""Makes a folder for tests/gpu/replay.py of every sweep of tests/emulator and tests/gpu. Needs the compiler, not a GPU.

    python -m tests.gpu.record FOLDER [--arch sm_90a] [--tests EXPRESSION]

The tests run as they are, but where they would launch a kernel (`check` of tests/gpu_harness.py) the launch is written down, for
one architecture. What ptxas assembles on this machine is stored beside the PTX.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]  # the tests name each other without their folder

import gpu_harness  # noqa: E402
import msgspec  # noqa: E402
import pytest  # noqa: E402
from gpu.test_gpu import SWEEPS, WAVES, Sweep  # noqa: E402
from gpu_operands import TOLERANCE, T, Trial  # noqa: E402

from tests.gpu.replay_form import IMAGES, LAUNCHES, ReplayLaunch, operand_of, result_of  # noqa: E402
from tilewright.compiler.builder.assemble_kernel import assembled  # noqa: E402
from tilewright.compiler.builder.build import BuiltKernel  # noqa: E402
from tilewright.runtime.errors import BuildError  # noqa: E402
from tilewright.runtime.target import Target, TargetKind  # noqa: E402

_LAUNCHES = re.compile(r"\b(sweep|check)\(")
_ARCH = re.compile(r"sm_(\d+)")


class Recorder:
    """A pytest plugin. Every launch that the tests ask for goes into the folder, built for `arch`, which runs what is for earlier
    architectures. multiprocessors: ReplayLaunch.multiprocessors of what is written down next."""

    def __init__(self, folder: Path, arch: str) -> None:
        self.folder, self.arch, self.test = folder, arch, ""
        self.count = 0
        self.multiprocessors: int | None = None
        self._pool = ThreadPoolExecutor(2)
        self._images: dict[str, Any] = {}
        self._seen: set[bytes] = set()
        (folder / IMAGES).mkdir(parents=True, exist_ok=True)
        (folder / LAUNCHES).write_bytes(b"")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Only what launches through `check`, and nowhere else."""
        items[:] = [i for i in items if isinstance(i, pytest.Function) and _LAUNCHES.search(inspect.getsource(i.function))]

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self.test = item.name

    def check(self, text: str, config: str, inputs: Sequence[T], results: Sequence[T], dims: Mapping[str, int],
              reference: Callable[..., object], seed: int | None = None, arch: str = "sm_80",
              pads: Mapping[int, tuple[int, ...]] | None = None, offsets: Mapping[int, int] | None = None,
              device: Any = None, tolerance: float | None = None) -> bool:
        """In place of gpu_harness.check: writes the launch down; False when a guard forbids it."""
        target = self.arch if _number(arch) <= _number(self.arch) else arch
        try:
            built = gpu_harness.build(text, config, target)
        except BuildError:
            if target == arch:
                raise
            target, built = arch, gpu_harness.build(text, config, arch)
        trial = Trial.of(inputs, results, dims, pads, offsets)
        if not built.kernel.legal(gpu_harness.symbols(built, dims, [*trial.inputs, *trial.outputs])):
            return False
        expected = trial.expected(inputs, reference)
        listed = tuple(result_of(operand_of(t, p), e, TOLERANCE[t.element] if tolerance is None else tolerance)
                       for t, p, e in zip(results, trial.outputs, expected, strict=True))
        kernel = msgspec.structs.replace(built.kernel, object=self._image(built, target))
        found = ReplayLaunch(self.test, target, kernel, dict(dims), tuple(map(operand_of, inputs, trial.inputs)), listed, seed,
                             self.multiprocessors)
        self._write(found)
        return True

    def sweep(self, test: str, sweep: Sweep, sizes: Sequence[tuple[int, ...]]) -> int:
        """Write down a kernel of tests/gpu at some of its shapes; how many its guards allow."""
        self.test, case = test, sweep.case
        return sum(self.check(case.text, sweep.config, case.inputs, case.results, dict(zip(sweep.names, size, strict=True)),
                              case.reference, arch=self.arch, tolerance=sweep.tolerance) for size in sizes)

    def _image(self, built: BuiltKernel, arch: str) -> str:
        """The name of a kernel's image, which is assembled meanwhile."""
        name = built.kernel.object
        if name not in self._images:
            self._images[name] = self._pool.submit(assembled, built, Target(TargetKind.CUDA, arch))
        return name

    def _write(self, found: ReplayLaunch) -> None:
        line = msgspec.json.encode(msgspec.structs.replace(found, test="", seed=None))
        if line in self._seen:
            return
        self._seen.add(line)
        self.count += 1
        with (self.folder / LAUNCHES).open("ab") as file:
            file.write(msgspec.json.encode(found) + b"\n")

    def finish(self) -> None:
        """Write the images."""
        for name, made in self._images.items():
            (self.folder / IMAGES / name).write_bytes(made.result().code)
        self._pool.shutdown()


def _number(arch: str) -> int:
    found = _ARCH.match(arch)
    assert found is not None
    return int(found[1])


def record(folder: Path, arch: str, tests: Sequence[str], expression: str = "") -> int:
    """Write down the launches of the tests; how many."""
    recorder, checked = Recorder(folder, arch), gpu_harness.check
    gpu_harness.check = recorder.check  # before the tests take its name
    try:
        arguments = [*tests, "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
        arguments += ["-k", expression] if expression else []
        code = pytest.main(arguments, plugins=[recorder])
        if not expression:
            for name, s in SWEEPS.items():
                recorder.sweep(name, s, s.sizes)
            for name, s in WAVES.items():
                recorder.sweep(f"{name} in waves", s, s.sizes[:1])
    finally:
        gpu_harness.check = checked
    recorder.finish()
    if code not in (0, 5):
        raise SystemExit(f"the tests cannot be written down: pytest ended with {code}")
    return recorder.count


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.gpu.record", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--tests", default="", help="expression as for pytest -k; default: all")
    args = parser.parse_args(argv)
    count = record(args.folder, args.arch, [str(ROOT / "tests" / "emulator")], args.tests)
    print(f"{count} launches in {args.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
