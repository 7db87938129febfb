"""Which work is done by strips of rows."""

from __future__ import annotations

from enum import StrEnum


class StripChoice(StrEnum):
    """Of launches on a CPU that compute rows from rows, and of products that a kernel of a GPU holds with the work on their rows:
    those that are predicted to gain, more than these, or none."""

    PREDICTED = "predicted"
    WIDELY = "widely"
    NEVER = "never"
