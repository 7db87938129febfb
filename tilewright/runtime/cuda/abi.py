"""Layouts and numbers of the driver's C interface that native code uses; tests compare them with cuda.bindings'."""

from __future__ import annotations

import ctypes

from tilewright.runtime.program.tensor_map import DTYPES
from tilewright.runtime.tensor import DType

CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
CAPTURE_ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
PROMOTE_L2_128 = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes -> CUtensorMapSwizzle
_MAP_TYPES = {DType.I8: 0, DType.F8E4M3: 0, DType.F8E5M2: 0, DType.I32: 3, DType.F16: 6, DType.F32: 7, DType.F64: 8,
              DType.BF16: 9}  # CUtensorMapDataType; bytes travel as UINT8
MAP_TYPES = tuple(_MAP_TYPES[d] for d in DTYPES)  # by the number that a host program passes


def map_type(dtype: DType) -> int:
    """CUtensorMapDataType of an element type."""
    return _MAP_TYPES[dtype]


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute, of clusters; another one has its number in the first word of them."""

    _fields_ = (
        ("id", ctypes.c_uint32),
        ("pad", ctypes.c_char * 4),
        ("cluster", ctypes.c_uint32 * 3),
        ("rest", ctypes.c_char * 52),
    )


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint32),
    )


LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)  # cuLaunchKernelEx
CLUSTERS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)  # cuOccupancyMaxActiveClusters
