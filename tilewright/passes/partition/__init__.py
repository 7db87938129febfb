"""Rules by which regions join: `tw.partition.register` takes those of users."""

from tilewright.passes.partition.region import Region
from tilewright.passes.partition.rules import Rule, register, unregister

__all__ = ["Region", "Rule", "register", "unregister"]
