"""What goes wrong, by the driver's error codes, and what comes after."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from cuda_fake.fake_state import LAUNCH_FAILED, OUT_OF_MEMORY, FakeState
from cuda_fake.models import CHAIN, chain, inputs, product
from cuda_fake.scenarios_calls import finish, torch_of
from cuda_fake.worker import alone

import tilewright as tw
from tilewright.compiler.builder.ptxas import find_tool
from tilewright.runtime.cuda import driver
from tilewright.runtime.cuda.driver import CudaError
from tilewright.runtime.errors import DeviceError, ShapeError


def good(fn: tw.CompiledFunction) -> None:
    given = inputs(5)
    np.testing.assert_array_equal(fn(*given), product(*given))


def no_memory_for_temporaries(fake: FakeState) -> None:
    fn, torch = chain(), torch_of(fake)
    tensors = [torch.tensor(a) for a in inputs(3000)]
    fake.fail("cuMemAllocFromPoolAsync", OUT_OF_MEMORY)
    with pytest.raises(CudaError, match=r"GPU memory for the temporaries of a call: CUDA_ERROR_OUT_OF_MEMORY; .*smaller"):
        fn(*tensors)
    result = fn(*tensors)
    finish(fake, 0)
    np.testing.assert_array_equal(result.get(), product(*inputs(3000)))


def no_memory_for_arrays(fake: FakeState) -> None:
    fn = chain()
    good(fn)
    for number in range(4):
        fake.fail("cuMemAllocFromPoolAsync", OUT_OF_MEMORY, number)
        with pytest.raises(CudaError, match="array of the host: CUDA_ERROR_OUT_OF_MEMORY"):
            fn(*inputs(5))
    good(fn)


def a_launch_that_is_refused_is_named(fake: FakeState) -> None:
    fn = chain()
    good(fn)
    for number in range(2):
        fake.fail("cuLaunchKernelEx", 701, number)
        with pytest.raises(CudaError, match=r"launch matmul\w* \(\w+\{.*\d+ threads.*OUT_OF_RESOURCES; .*registers") as caught:
            fn(*inputs(5))
        assert (caught.value.code, caught.value.sticky) == (701, False)
    good(fn)


def a_failed_copy_or_look_is_reported(fake: FakeState) -> None:
    fn = chain()
    good(fn)
    for function, said in (("cuMemcpyHtoDAsync", "copy an argument"), ("cuMemcpyDtoHAsync", "copy a result"),
                           ("cuStreamGetCaptureInfo", "begin a call"), ("cuStreamGetId", "begin a call")):
        fake.fail(function, 1)
        with pytest.raises(CudaError, match=said):
            fn(*inputs(5))
    good(fn)


def code_that_does_not_load(fake: FakeState) -> None:
    fn = tw.compile(CHAIN.replace("24", "20"), {"M": (0, 64)}, target="cuda:sm_90a")
    given = [inputs(5)[0], np.ones((40, 20), np.float32), np.ones((20, 16), np.float32)]
    for code, said in ((222, "update the driver"), (218, "compile the model for this GPU"), (209, "another architecture")):
        refused_as_machine_code_too = code != 218 and find_tool("ptxas") is not None
        fake.fail("cuLibraryLoadData", code, times=2 if refused_as_machine_code_too else 1)
        with pytest.raises(CudaError, match=said):
            fn(*given)
    np.testing.assert_array_equal(fn(*given), product(*given))


def tensor_maps_that_are_refused(fake: FakeState) -> None:
    from cuda_fake.scenarios_kernels import dense

    fn, given = dense("cuda:sm_90a")
    given = [a[:17] if len(a) == 24 else a for a in given]  # rows that no scenario before it had: their maps are kept
    fake.fail("cuTensorMapEncodeTiled", 1)
    with pytest.raises(CudaError, match="describe an operand to the copy engine: CUDA_ERROR_INVALID_VALUE"):
        fn(*given)
    assert np.isfinite(fn(*given)).all()


def shapes_outside_of_the_range(fake: FakeState) -> None:
    with pytest.raises(ShapeError, match="4097"):
        chain()(*inputs(4097))


@alone()
def a_kernel_that_fails_loses_the_process(fake: FakeState) -> None:
    """The error comes with the wait, and with every later call."""
    fn, torch = chain(), torch_of(fake)
    good(fn)
    x, w, _ = (torch.tensor(a) for a in inputs(5))
    fake.devices[0].free(w.data_ptr())  # the kernel reads what is not there
    fn(x, w, torch.tensor(inputs(5)[2]))
    with pytest.raises(Exception, match="LAUNCH_FAILED"):
        finish(fake, 0)
    with pytest.raises(CudaError, match="lost for this process") as caught:
        fn(*inputs(5))
    assert (caught.value.code, caught.value.sticky) == (LAUNCH_FAILED, True)


@alone(archs=["sm_80"])
def another_architecture(fake: FakeState) -> None:
    with pytest.raises(DeviceError, match=r"cannot run on CUDA device 0: it is for sm_90a and the device is sm_80; .*cuda:sm_80"):
        chain()(*inputs(5))
    good(chain("cuda:sm_80"))
    good(chain("cuda"))


@alone(archs=["sm_100a"])
def later_devices_run_plain_architectures(fake: FakeState) -> None:
    from tilewright.runtime.cuda.cuda_device import cannot_run

    assert [cannot_run(a, 0) for a in ("sm_80", "sm_90", "sm_100", "sm_100a", "sm_100f")] == [""] * 5
    assert all(cannot_run(a, 0) for a in ("sm_90a", "sm_120", "sm_103f", "x"))


@alone(version=11080)
def an_old_driver(fake: FakeState) -> None:
    said = r"the CUDA driver is for CUDA 11.8; 12.0 or later is needed, update the driver"
    assert said.replace("\\", "") in driver.unavailable()
    with pytest.raises(DeviceError, match=rf"compiled for cuda:sm_90a and no CUDA device can be used: {said}"):
        chain()(*inputs(5))
    with pytest.raises(DeviceError, match=said):
        tw.compile(CHAIN, {"M": (0, 64)}, target="cuda")


@alone(archs=[])
def no_device(fake: FakeState) -> None:
    with pytest.raises(DeviceError, match="the CUDA driver finds no GPU"):
        chain()(*inputs(5))


@alone()
def a_driver_that_does_not_start(fake: FakeState) -> None:
    fake.fail("cuInit", 804)
    assert "does not start" in driver.unavailable()
    assert driver.unavailable() == ""


@alone(archs=["sm_90a", "sm_80"])
def targets_lists_devices(fake: FakeState) -> None:
    import contextlib
    import io

    from tilewright.compiler.cli.main import main

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main(["targets", "--json"])
    events: list[dict[str, Any]] = [json.loads(line) for line in shown.getvalue().splitlines()]
    found = [e for e in events if e["event"] == "cuda"]
    assert [(e["device"], e["arch"], e["name"]) for e in found] == [(0, "sm_90a", "fake sm_90a"), (1, "sm_80", "fake sm_80")]
    runs = {e["name"]: e["runs_here"] for e in events if e["event"] == "target"}
    assert runs["cuda:sm_90a"]
    assert runs["cuda:sm_80"]
