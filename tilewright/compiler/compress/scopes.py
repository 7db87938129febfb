"""Choices of how pools are made, apart from what makes them, so that the command line loads nothing else."""

from __future__ import annotations

SCOPES = ("network", "layer")  # one pool for all weights, or one for each
ASSIGNS = ("distance", "cosine", "activations")  # how vectors are compared
