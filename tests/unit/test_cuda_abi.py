"""What native code knows of the driver's C interface is what cuda.bindings says of it."""

from __future__ import annotations

import ctypes
import inspect
import re

import pytest

from tilewright.runtime.cuda import abi
from tilewright.runtime.cuda.cuda_table import ARENA_FIELDS, CONTEXT_FIELDS, FUNCTIONS, RECORD_FIELDS, SYMBOLS, cuda_table_ir
from tilewright.runtime.program.kernel import Launch, MicroKernel
from tilewright.runtime.program.tensor_map import DTYPES, MAP_BYTES
from tilewright.runtime.tensor import DType

driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")


def test_launch_config_and_attribute() -> None:
    given, attribute = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = 2, 3, 4
    given.gridDimX, given.gridDimY, given.gridDimZ = 5, 6, 7
    given.blockDimX, given.blockDimY, given.blockDimZ = 8, 9, 10
    given.sharedMemBytes, given.hStream = 11, driver.CUstream(0x1234_5678_9ABC)
    given.attrs, given.numAttrs = [attribute], 1
    found = abi.LaunchConfig.from_address(given.getPtr())
    assert (tuple(found.grid), tuple(found.block), found.shared_bytes) == ((5, 6, 7), (8, 9, 10), 11)
    assert (found.stream, found.attribute_count) == (0x1234_5678_9ABC, 1)
    first = found.attributes.contents
    assert (first.id, tuple(first.cluster)) == (abi.CLUSTER_DIMENSION, (2, 3, 4))
    attribute.value.programmaticStreamSerializationAllowed = 5
    assert abi.LaunchAttribute.from_address(attribute.getPtr()).cluster[0] == 5
    assert ctypes.sizeof(abi.LaunchAttribute) == 8 + 64  # a union of 64 bytes follows
    assert ctypes.sizeof(abi.LaunchConfig) == 56


def test_the_native_structures_are_those() -> None:
    text = cuda_table_ir()
    sizes = {"i32": 4, "ptr": 8}
    fields = re.search(r"%config = type \{ (.*) \}", text)[1].split(", ")
    offset, offsets = 0, []
    for f in fields:
        offset += -offset % sizes[f]
        offsets.append(offset)
        offset += sizes[f]
    names = ("grid", "block", "shared_bytes", "stream", "attributes", "attribute_count")
    wanted = [getattr(abi.LaunchConfig, n).offset for n in names]
    assert [offsets[i] for i in (0, 3, 6, 7, 8, 9)] == wanted
    assert "%attribute = type { i32, [4 x i8], i32, i32, i32, [52 x i8] }" in text
    assert abi.LaunchAttribute.cluster.offset == 8


def test_numbers_of_enumerations() -> None:
    kinds = driver.CUtensorMapDataType
    names = {DType.F16: "FLOAT16", DType.BF16: "BFLOAT16", DType.F32: "FLOAT32", DType.F8E4M3: "UINT8", DType.F8E5M2: "UINT8",
             DType.I8: "UINT8", DType.I32: "INT32", DType.F64: "FLOAT64"}
    assert tuple(int(getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{names[d]}")) for d in DTYPES) == abi.MAP_TYPES
    swizzles = driver.CUtensorMapSwizzle
    assert {b: int(getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{n}"))
                            for b, n in ((0, "NONE"), (32, "32B"), (64, "64B"), (128, "128B"))} == abi.SWIZZLES
    assert int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B) == abi.PROMOTE_L2_128
    assert int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE) == 0
    assert int(driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == 0
    assert int(driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE) == abi.CAPTURE_ACTIVE
    assert int(driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) == abi.CLUSTER_DIMENSION
    programmatic = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert int(programmatic) == abi.PROGRAMMATIC
    assert driver.CU_TENSOR_MAP_NUM_QWORDS * 8 == MAP_BYTES


def test_order_of_arguments() -> None:
    """As cuda.bindings documents them: outputs of the C function are results there."""
    wanted = {"cuTensorMapEncodeTiled": "tensorDataType tensorRank globalAddress globalDim globalStrides boxDim elementStrides "
              "interleave swizzle l2Promotion oobFill", "cuMemcpyDtoDAsync": "dstDevice srcDevice ByteCount hStream",
              "cuLaunchKernelEx": "f kernelParams extra", "cuCtxPushCurrent": "ctx", "cuStreamGetId": "hStream"}
    for name, order in wanted.items():
        listed = re.split(r"[(,]", inspect.getdoc(getattr(driver, name)).splitlines()[0].replace(")", ""))
        given = [re.findall(r"\w+", argument.split(":")[0])[-1] for argument in listed[1:]]
        assert [argument for argument in given if argument != "config"] == order.split()


def test_the_table_is_whole() -> None:
    text = cuda_table_ir()
    assert "$" not in text
    assert all(f"@{s}(" in text for s in SYMBOLS)
    assert set(FUNCTIONS) <= set(CONTEXT_FIELDS)
    assert len(set(CONTEXT_FIELDS)) == len(CONTEXT_FIELDS)
    assert len(ARENA_FIELDS) == 4
    assert len(RECORD_FIELDS) == 11


def test_clusters_travel_with_a_kernel() -> None:
    kernel = MicroKernel("k", "", "wgmma", "", (), ("1", "1", "1"), threads=128, cluster=(2, 1, 1),
                         then=(Launch("l", ("1", "1", "1"), 32),))
    assert [step.cluster for step in kernel.launches()] == [(2, 1, 1), (1, 1, 1)]
