"""Benchmarks of ragged tensors."""
