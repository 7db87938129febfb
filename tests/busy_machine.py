"""Tests of what threads do where nobody else wants their cores."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tilewright.runtime.host.giving_way import busy_seconds


@contextmanager
def skipped_where_cores_are_taken() -> Iterator[None]:
    """What fails within this block, while others kept every core at work or took what was offered, is skipped."""
    busy, begun = busy_seconds(), time.monotonic()
    try:
        yield
    except AssertionError:
        idle = (os.cpu_count() or 1) - (busy_seconds() - busy) / (time.monotonic() - begun)
        if idle > 0.1 and not _offers_are_taken():
            raise
        pytest.skip("others kept every core at work")


def _offers_are_taken() -> bool:
    """Does another process, or the machine's other guests, often take a core that is offered, as a waiting worker does?"""
    taken, until = 0, time.monotonic() + 1
    while taken < 3 and (offered := time.monotonic()) < until:
        os.sched_yield()
        taken += time.monotonic() - offered > 0.0002
    return taken == 3
