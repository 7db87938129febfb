"""Attacks on what is stored: forged and damaged artifacts, damaged entries of the cache."""
