"""`once`: what a process has one of, made by one thread however many ask for it at the same time."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

_T = TypeVar("_T")
_Arguments = TypeVarTuple("_Arguments")


def once(function: Callable[[*_Arguments], _T]) -> Callable[[*_Arguments], _T]:
    """`function`, called once for equal arguments, its results kept until the process ends.

    `functools.cache` calls it in every thread that asks before the first result is there, and keeps one of the results: the
    others are lost while their threads still use them. An exception is not kept.
    """
    made: dict[tuple[*_Arguments], _T] = {}
    lock = threading.RLock()

    def forget() -> None:  # the thread that held it is not in the child
        nonlocal lock
        lock = threading.RLock()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)

    @functools.wraps(function)
    def ask(*arguments: *_Arguments) -> _T:
        try:
            return made[arguments]
        except KeyError:
            pass
        with lock:
            if arguments not in made:
                made[arguments] = function(*arguments)
            return made[arguments]

    return ask
