"""A model tuned for several targets in one job: on a farm at once, else one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.compiler.cli.compile_arguments import CompileArguments
    from tilewright.compiler.compilation.options import CompileOptions
    from tilewright.runtime.load.function import CompiledFunction


def tuned_for_all(arguments: CompileArguments, progress: Callable[[Any], None]) -> list[CompiledFunction]:
    """A function for each target that `arguments` name, in their order.

    progress: told how the searches go, from one thread at a time; what it raises ends all of them.
    Raises:
        OptionError: a target that is named twice, or is none. What ended the first search that failed.
    """
    from tilewright.compiler.compilation.compilation import full_target
    from tilewright.runtime.errors import OptionError

    names = [part.strip() for part in arguments.target.split(",")]
    found = [full_target(name) for name in names]
    if len({target.kind for target in found}) < len(found):
        raise OptionError(f"--target {arguments.target}: wanted at most one target of each kind (host, cuda, emulator); a saved "
                          "model is loaded by its kind")
    if arguments.ray is None or len(names) == 1:
        return [replace(arguments, target=name).compile(arguments.options(progress)) for name in names]
    return _at_once([replace(arguments, target=name) for name in names], progress)


def _at_once(jobs: Sequence[CompileArguments], progress: Callable[[Any], None]) -> list[CompiledFunction]:
    """Searches on one cluster, a thread each."""
    from tilewright.compiler.tuning.farm_cluster import connected, shared_among

    together = _Together(progress)
    with ExitStack() as stack:
        options = [job.options(together.told) for job in jobs]
        farm = options[0].farm
        assert farm is not None, "targets are tuned at once on a farm"
        stack.enter_context(connected(farm))
        shared = shared_among(farm, len(jobs))
        threads = [threading.Thread(target=together.run, args=(number, job, replace(wanted, farm=shared)))
                   for number, (job, wanted) in enumerate(zip(jobs, options, strict=True))]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        except KeyboardInterrupt:
            together.stop = True
            for thread in threads:
                thread.join()
            raise
    return together.functions(len(jobs))


class _Together:
    """Searches in threads: what one of them raises, or an interrupt, ends the others at their next step."""

    def __init__(self, progress: Callable[[Any], None]) -> None:
        self.stop = False
        self._progress, self._lock = progress, threading.Lock()
        self._found: dict[int, CompiledFunction] = {}
        self._error: BaseException | None = None

    def told(self, state: Any) -> None:
        if self.stop:
            raise KeyboardInterrupt
        with self._lock:
            self._progress(state)

    def run(self, number: int, job: CompileArguments, options: CompileOptions) -> None:
        try:
            self._found[number] = job.compile(options)
        except BaseException as error:
            self._error = self._error or error
            self.stop = True

    def functions(self, count: int) -> list[CompiledFunction]:
        """Of all; raises what ended the first that failed."""
        if self._error is not None:
            raise self._error
        return [self._found[number] for number in range(count)]
