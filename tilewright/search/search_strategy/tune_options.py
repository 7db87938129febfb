"""Budget and TuneOptions: how long a search of one operator may take, and how it goes about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """What a search may spend; None: no limit of that kind. Both None: until nothing is left to gain.

    The measurements of the certificate stay within `seconds`; they come on top of `trials`.
    """

    seconds: float | None = None
    trials: int | None = None

    def share(self, seconds: float, trials: int) -> float:
        """What has been spent, 1 when the budget is used up."""
        shares = [0.0]
        if self.seconds is not None:
            shares.append(seconds / self.seconds if self.seconds > 0 else 1.0)
        if self.trials is not None:
            shares.append(trials / self.trials if self.trials > 0 else 1.0)
        return max(shares)


@dataclass(frozen=True)
class TuneOptions:
    """How to search.

    Args:
        max_regret, max_kernels: of the cover (cover).
        threads: most threads of a call; 1 and this many are tried.
        seed: of everything random.
        batch: new kernels a round. first: random ones before the model is asked. shapes_each: shapes a new one is measured at.
        cells: measurements a round of kernels that lead. points: shapes that are looked at in a round.
        verify, certify: shares of the budget that are kept to measure the chosen kernels where they are chosen, and for the
            certificate. rivals: kernels timed against the dispatched one.
        enough: gain, as a share of the weighted time, below which a kind of measurement is not worth taking.
    """

    max_regret: float = 0.05
    max_kernels: int | None = None
    threads: int = 1
    seed: int = 0
    batch: int = 8
    first: int = 4
    shapes_each: int = 3
    cells: int = 16
    points: int = 40
    verify: float = 0.3
    certify: float = 0.15
    rivals: int = 3
    enough: float = 0.0005

    @property
    def thread_choices(self) -> tuple[int, ...]:
        return (1,) if self.threads == 1 else (1, self.threads)
