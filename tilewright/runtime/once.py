"""`once`: what a process has one of, made by one thread however many ask for it at the same time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from tilewright.runtime.fork_safe_lock import ForkSafeLock

_T = TypeVar("_T")
_Arguments = TypeVarTuple("_Arguments")


def once(function: Callable[[*_Arguments], _T]) -> Callable[[*_Arguments], _T]:
    """`function`, called once for equal arguments, its results kept until the process ends.

    `functools.cache` calls it in every thread that asks before the first result is there, and keeps one of the results: the
    others are lost while their threads still use them. An exception is not kept.
    """
    made: dict[tuple[*_Arguments], _T] = {}
    lock = ForkSafeLock()

    @functools.wraps(function)
    def ask(*arguments: *_Arguments) -> _T:
        try:
            return made[arguments]
        except KeyError:
            pass
        with lock.of_process():
            if arguments not in made:
                made[arguments] = function(*arguments)
            return made[arguments]

    return ask
