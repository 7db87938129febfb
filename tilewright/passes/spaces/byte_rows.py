"""How f32 rows become bytes for products with weights in few bits. MLIR-free."""

LARGEST_BYTE = 127.0  # code of the largest magnitude of a group
SMALLEST = 1e-30  # magnitude of a group that has codes other than 0
