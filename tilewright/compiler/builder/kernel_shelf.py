"""KernelShelf: built kernels beside a record store, by the key of the cache, so that one build serves all who share the store.

An entry is what the cache holds, with the hash that tells damage. Entries are native code: a store is to be trusted as a saved
model is.
"""

from __future__ import annotations

import os

from tilewright.compiler.builder.cache import entry_content, entry_of
from tilewright.runtime.errors import LogError
from tilewright.runtime.log import LOG
from tilewright.search.database.record_place import RecordPlace, place_of

KERNELS = "kernels"


class KernelShelf:
    """The kernels of one store. What cannot be read is not there; what cannot be written is told of once."""

    def __init__(self, place: RecordPlace) -> None:
        self.place = place
        self._told = False

    def get(self, key: str) -> bytes | None:
        """The entry's bytes; None where there is none, or a damaged one."""
        try:
            return entry_content(key, self.place.read(_name(key)))
        except FileNotFoundError:
            return None
        except LogError as error:
            self._tell(error)
            return None

    def put(self, key: str, data: bytes) -> None:
        """Store an entry, unless it is there."""
        try:
            if self.get(key) is None:
                self.place.write(_name(key), entry_of(key, data))
        except LogError as error:
            self._tell(error)

    def _tell(self, error: LogError) -> None:
        if not self._told:
            self._told = True
            LOG.warning("kernels are not shared: %s", error)


def shelf_of(log: str | os.PathLike[str] | None) -> KernelShelf | None:
    """Of the store that a log is; None where it is a file."""
    place = None if log is None else place_of(os.fspath(log))
    return None if place is None else KernelShelf(place)


def _name(key: str) -> str:
    return f"{KERNELS}/{key[:2]}/{key[2:]}"
