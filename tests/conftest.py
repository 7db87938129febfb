"""Collects lit files as tests and skips what this machine cannot run."""

from __future__ import annotations

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import erased_operations
import incubator
import kept_code
import lit_runner
import llvm_level
import pytest
from garbage import THRESHOLDS
from platformdirs import user_cache_path

from tilewright.runtime.host.host_cpu import affinity
from tilewright.runtime.knobs import CACHE_DIR, WORKERS

if TYPE_CHECKING:
    from tilewright.compiler.compilation.compilation import Compilation
    from tilewright.runtime.program.artifact import Bundle

LIT = Path(__file__).parent / "lit"


class LitError(Exception):
    """A RUN line did not do what its file says."""


class LitItem(pytest.Item):
    """One RUN line."""

    def __init__(self, *, line: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.line = line

    def runtest(self) -> None:
        with erased_operations.watched():
            report = lit_runner.run(self.line, self.path)
        if report is not None:
            raise LitError(report)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value) if isinstance(excinfo.value, LitError) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.path.relative_to(LIT.parent)}: {self.line}"


class LitFile(pytest.File):
    """A .mlir or .py file with RUN lines; each is a test. A file without one is an error: it would test nothing."""

    def collect(self) -> Iterator[pytest.Item]:
        lines = lit_runner.run_lines(self.path.read_text())
        if not lines:
            raise self.CollectError(f"{self.path}: no RUN line")
        for number, line in enumerate(lines, 1):
            yield LitItem.from_parent(self, name=f"RUN{number}", line=line)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    inside = file_path.is_relative_to(LIT) and "Output" not in file_path.parts
    if inside and file_path.suffix in (".mlir", ".py") and file_path.name != "lit.cfg.py":
        return LitFile.from_parent(parent, path=file_path)
    return None


def pytest_configure() -> None:
    """Processes that run tests share the cores: each builds kernels in as many others as it has of them. A second one would start
    for most of a second to build a kernel or two. What they build is kept apart from the user's own models, since much of
    it is not optimised."""
    gc.set_threshold(*THRESHOLDS)
    os.environ.setdefault(CACHE_DIR.name, str(user_cache_path("tilewright-tests", appauthor=False)))
    kept_code.place()
    beside = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if beside > 1:
        os.environ.setdefault(WORKERS.name, str(max(1, affinity() // beside)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true",
                     help="run every parameter of the tests that are sampled, and build all code as shipped")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A part of the tests, and those that are named or marked so, build and start their helpers as users do: with LLVM's level
    as shipped, and as processes of their own. What LLVM made in an earlier run is taken from there but with --whole."""
    is_plain = llvm_level.is_whole(item.config) or llvm_level.is_as_shipped(item.nodeid)
    llvm_level.build_as_shipped(is_plain or item.get_closest_marker("as_shipped") is not None)
    kept_code.keep(not llvm_level.is_whole(item.config))
    incubator.fork_helpers(not (is_plain or item.get_closest_marker("started") is not None))
    if "torch" in sys.modules:  # what a test draws without a generator of its own is the same in each run
        sys.modules["torch"].manual_seed(0)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps one of `n` parameters of a test marked `sampled(n)`, always the same ones, at least one; all that are named."""
    if llvm_level.is_whole(config):
        return
    sampled: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            sampled[item.nodeid.partition("[")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for found in sampled.values():
        (every,) = found[0].get_closest_marker("sampled").args  # type: ignore[union-attr]
        left_out.update(sorted(found, key=lambda item: crc32(item.nodeid.encode()))[-(-len(found) // every) :])
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="module")
def built_here() -> Iterator[None]:
    """Compiles that name no builder build in this process and keep nothing in the cache. For tests of what code computes: a
    worker process starts for most of a second, and builds as shipped."""
    from tilewright.compiler import api
    from tilewright.compiler.builder.local_builder import LocalBuilder

    plain = api.bundle_of

    def bundle_of(compilation: Compilation) -> Bundle:
        options = compilation.options
        return plain(replace(compilation, options=replace(options, builder=options.builder or LocalBuilder(compilation.target))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "bundle_of", bundle_of)
        yield


@pytest.fixture(autouse=True)
def gradients_stay_on() -> Iterator[None]:
    """Fails the test that leaves PyTorch's gradients switched off, and switches them on for the others."""
    yield
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "is_grad_enabled") and not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        pytest.fail("PyTorch's gradients are off in this process from here on")
