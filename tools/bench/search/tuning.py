"""What is searched, and what the step `tune` of `python -m tools.bench search` leaves for the others."""

from __future__ import annotations

from pathlib import Path

import msgspec

TABLE = (
    "dense_768x768", "dense_768x2304", "dense_768x3072", "dense_3072x768", "bmm_nt", "bmm_nn", "softmax", "layernorm",
    "conv3x3_64x56_64_nchw",
)  # fmt: skip


class Tuning(msgspec.Struct, frozen=True):
    """What `tune` leaves: when the compile started, in seconds since 1970, and how long it took."""

    operator: str
    threads: int
    budget: float
    started: float
    took: float

    @staticmethod
    def of(folder: Path) -> Tuning:
        return msgspec.json.decode((folder / "tuning.json").read_bytes(), type=Tuning)
