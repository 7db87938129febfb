"""Importer of PyTorch models. Only this folder imports torch."""
