"""Values of options that a shell completes. Nothing heavy is imported: a shell asks at every press of the key."""

from __future__ import annotations

from collections.abc import Callable

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a")

Completion = Callable[[str], list[str]]


def one_of(*values: str) -> Completion:
    """Completes these values."""
    def complete(incomplete: str) -> list[str]:
        return [v for v in values if v.startswith(incomplete)]

    return complete


complete_target = one_of("host", *(f"host:{level}" for level in LEVELS), "cuda", *(f"cuda:{a}" for a in ARCHS),
                         *(f"emulator:{a}" for a in ARCHS))


def complete_policy(incomplete: str) -> list[str]:
    """Completes the names of the policies."""
    from tilewright.search.task_scheduler.policies import policies

    return one_of(*policies())(incomplete)
