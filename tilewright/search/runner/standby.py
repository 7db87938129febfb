"""Standby: for each place of a pool an actor that is started and waits, so that one that is lost is replaced at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.errors import OptionError
from tilewright.runtime.log import LOG
from tilewright.search.runner.actor_process import ActorProcess, see_to_end

_STARTING = 5.0  # seconds that actors that are being made have to be given up


@dataclass(frozen=True)
class Spare:
    """where: None until its process is there."""

    handle: Any
    where: ActorProcess | None = None


class Standby:
    """Actors in wait, one a place at most.

    Args:
        make: starts one for a place, which takes no room of its own. located: where it runs, once it is ready. kill: ends one.
        failures: what `make` and `located` raise where one does not start; its place then has none until the next `refill`.
    """

    def __init__(self, make: Callable[[int], Any], located: Callable[[Any], ActorProcess], kill: Callable[[Any], None],
                 failures: tuple[type[BaseException], ...]) -> None:
        self._make, self._located, self._kill = make, located, kill
        self._failures: tuple[type[BaseException], ...] = (*failures, OptionError)
        self._spares: dict[int, Spare] = {}
        self._changed = threading.Condition()
        self._making, self._closed = 0, False

    def refill(self, place: int) -> None:
        """Start one where there is none, and wait until it is ready."""
        with self._changed:
            if self._closed or place in self._spares:
                return
            self._making += 1
            self._spares[place] = Spare(None)
        made = Spare(None)
        try:
            made = Spare(self._make(place))
            self._keep(place, made)
            self._keep(place, Spare(made.handle, self._located(made.handle)))
        except self._failures as error:
            LOG.info("nothing stands by in place %d: %s", place, error)
            with self._changed:
                self._spares.pop(place, None)
            self._kill(made.handle)
        finally:
            with self._changed:
                self._making -= 1
                self._changed.notify_all()

    def take(self, place: int) -> Spare | None:
        """The one of a place, if it is ready; it is the caller's then."""
        with self._changed:
            found = self._spares.get(place)
            return self._spares.pop(place) if found is not None and found.where is not None else None

    def close(self) -> None:
        """End all of them, and wait for the end of those that run on this machine."""
        with self._changed:
            self._closed = True
            spares = list(self._spares.values())
            self._spares.clear()
        for spare in spares:
            self._end(spare)
        with self._changed:
            self._changed.wait_for(lambda: not self._making, _STARTING)

    def _keep(self, place: int, spare: Spare) -> None:
        with self._changed:
            if not self._closed:
                self._spares[place] = spare
                return
        self._end(spare)

    def _end(self, spare: Spare) -> None:
        processes = [] if spare.where is None else spare.where.with_children()
        self._kill(spare.handle)
        see_to_end(processes)
