"""The package's logger, "tilewright": what is built and why (INFO), how long it took (DEBUG), what went another way (WARNING)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.runtime import knobs

LOG = logging.getLogger("tilewright")
_FORMAT = "tilewright: %(message)s"


def show_as_asked() -> None:
    """Write the log to standard error where TILEWRIGHT_DEBUG asks for it and the process has set up no handler of its own."""
    level = knobs.DEBUG.get()
    if not level:
        return
    LOG.setLevel(logging.INFO if level == 1 else logging.DEBUG)
    if not LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        LOG.addHandler(handler)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Log how long a part of the work took."""
    start = time.perf_counter()
    yield
    LOG.debug("%s: %.2f s", what, time.perf_counter() - start)
