"""CUDA devices: kernels loaded by cuda.core, launched by native code through the driver's own entry points."""
