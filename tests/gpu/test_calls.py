"""Whole calls on a CUDA device: torch's streams and graphs, other libraries, several streams and devices, failures."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_fake.models import CHAIN, DONATED, chain, inputs, product
from gpu.cuda_device import missing_reason

import tilewright as tw
from tilewright.runtime.limits import GpuLimits

REASON = missing_reason()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(REASON), reason=REASON)]
ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
sys.path[:0] = ["tests"]
import numpy as np
from cuda_fake.models import chain, inputs, product
from tilewright.runtime.cuda.driver import CudaError
fn, given = chain("cuda"), inputs(37)
np.testing.assert_array_equal(fn(*given), product(*given))
"""


@pytest.fixture(scope="module")
def fn() -> tw.CompiledFunction:
    return chain("cuda")


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def on_gpu(torch: Any, arrays: list[np.ndarray], device: str = "cuda") -> list[Any]:
    return [torch.from_numpy(a).to(device) for a in arrays]


def run(program: str, *before: str) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.parametrize("rows", [0, 1, 37, 4096])
def test_host_arrays(fn: tw.CompiledFunction, rows: int) -> None:
    given = inputs(rows)
    np.testing.assert_array_equal(fn(*given), product(*given))


@pytest.mark.parametrize("rows", [0, 1, 37, 4096])
def test_tensors_on_the_current_stream(fn: tw.CompiledFunction, torch: Any, rows: int) -> None:
    given = inputs(rows)
    stream = torch.cuda.Stream()
    for _ in range(3):
        with torch.cuda.stream(stream):
            tensors = [t.clone() for t in on_gpu(torch, given)]
            result = fn(*tensors)
            assert result.is_cuda
            doubled = result * 2
        stream.synchronize()
        np.testing.assert_array_equal(doubled.cpu().numpy(), 2 * product(*given))


def test_a_call_waits_for_nothing(fn: tw.CompiledFunction, torch: Any) -> None:
    tensors = on_gpu(torch, inputs(64))
    fn(*tensors)
    torch.cuda.synchronize()
    for call in (lambda: fn(*tensors), lambda: fn(*tensors, out=torch.empty(64, 16, device="cuda"))):
        torch.cuda._sleep(2_000_000_000)
        call()
        done = torch.cuda.current_stream().record_event()
        assert not done.query()
        torch.cuda.synchronize()


def test_a_chosen_stream(fn: tw.CompiledFunction, torch: Any) -> None:
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    given = inputs(100)
    for stream in (device.create_stream(), torch.cuda.Stream()):
        tensors = on_gpu(torch, given)
        torch.cuda.synchronize()
        result = fn(*tensors, stream=stream)
        torch.cuda.synchronize()
        np.testing.assert_array_equal(result.cpu().numpy(), product(*given))


def test_views_are_made_dense_and_aligned(fn: tw.CompiledFunction, torch: Any) -> None:
    given = inputs(33)
    tensors = on_gpu(torch, given)
    room = torch.zeros(33 * 40 + 1, device="cuda")
    room[1:] = tensors[0].reshape(-1)
    wide = torch.zeros(40, 48, device="cuda")
    wide[:, ::2] = tensors[1]
    result = fn(room[1:].view(33, 40), wide[:, ::2], tensors[2])
    np.testing.assert_array_equal(result.cpu().numpy(), product(*given))


def test_a_donated_tensor_takes_the_result(torch: Any) -> None:
    add = tw.compile(DONATED, {"M": (1, 4096)}, target="cuda", donate=("arg0",))
    x = torch.arange(1000, dtype=torch.float32, device="cuda")
    assert add(x, torch.ones(1000, device="cuda")) is x
    assert (x.cpu() == torch.arange(1000) + 1).all()


def test_torch_graph(fn: tw.CompiledFunction, torch: Any) -> None:
    static = on_gpu(torch, inputs(65))
    fn(*static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fn(*static) + fn(*static)
    for seed in (1, 2):
        given = inputs(65, seed)
        for tensor, values in zip(static, on_gpu(torch, given), strict=True):
            tensor.copy_(values)
        graph.replay()
        fn(*on_gpu(torch, inputs(3000)))
        np.testing.assert_array_equal(result.cpu().numpy(), 2 * product(*given))


def test_a_first_call_may_be_captured(torch: Any) -> None:
    fresh = tw.compile(CHAIN.replace("24", "28"), {"M": (0, 64)}, target="cuda")
    static = [torch.ones(9, 40, device="cuda"), torch.ones(40, 28, device="cuda"), torch.ones(28, 16, device="cuda")]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fresh(*static)
    graph.replay()
    assert (result.cpu() == 40 * 28).all()


def test_graphs_of_cuda_core(fn: tw.CompiledFunction, torch: Any) -> None:
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    stream, static, out = device.create_stream(), on_gpu(torch, inputs(65)), torch.empty(65, 16, device="cuda")
    torch.cuda.synchronize()
    building = stream.create_graph_builder().begin_building()
    fn(*static, out=out, stream=stream)
    graph = building.end_building().complete()
    graph.launch(stream)
    stream.sync()
    np.testing.assert_array_equal(out.cpu().numpy(), product(*inputs(65)))


def test_many_threads_and_streams(fn: tw.CompiledFunction, torch: Any) -> None:
    wrong: list[tuple[int, int]] = []

    def work(seed: int, stream: Any) -> None:
        with torch.cuda.stream(stream):
            for turn in range(50):
                given = inputs(1 + 97 * seed + turn, seed)
                got = fn(*on_gpu(torch, given)).cpu().numpy()
                if not np.array_equal(got, product(*given)):
                    wrong.append((seed, turn))

    shared = torch.cuda.Stream()
    threads = [threading.Thread(target=work, args=(n, shared if n % 2 else torch.cuda.Stream())) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_two_devices(fn: tw.CompiledFunction, torch: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    for index in (0, 1, 0):
        given = inputs(70, index)
        np.testing.assert_array_equal(fn(*on_gpu(torch, given, f"cuda:{index}")).cpu().numpy(), product(*given))
        assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("library", ["cupy", "jax.numpy"])
def test_other_libraries(fn: tw.CompiledFunction, library: str) -> None:
    arrays = pytest.importorskip(library)
    given = inputs(50)
    result = fn(*(arrays.asarray(a) for a in given))
    assert type(result) is type(arrays.asarray(given[0]))
    np.testing.assert_array_equal(result.get() if library == "cupy" else np.asarray(result), product(*given))


def test_tensor_cores_and_tensor_maps(torch: Any) -> None:
    text = (ROOT / "tests/data/dense_768x2304_dyn_m.mlir").read_text()
    dense = tw.compile(text, {"arg0.0": (0, 512)}, target="cuda", options=tw.CompileOptions(precision="bf16"))
    for rows in (1, 24, 57, 512):
        x, w = torch.randn(rows, 768, device="cuda"), torch.randn(768, 2304, device="cuda")
        want = x.bfloat16().double() @ w.bfloat16().double()
        assert torch.linalg.norm(dense(x, w).double() - want) <= 1e-2 * torch.linalg.norm(want)


def test_limits_are_those_of_the_table() -> None:
    from tilewright.runtime.cuda.cuda_device import arch_of, limits_of

    found, listed = limits_of(0), GpuLimits.of(arch_of(0))
    assert (found.shared_bytes, found.threads, found.registers) == (listed.shared_bytes, listed.threads, listed.registers)


def test_kernels_are_timed() -> None:
    import gpu_harness
    from gpu_workloads import contraction

    from tilewright.runtime.cuda.cuda_device import CudaDevice
    from tilewright.runtime.cuda.timer import KernelTimer

    case, dims = contraction("m k,k n,m n"), {"M": 512, "N": 512, "K": 512}
    device = CudaDevice()
    built, timer = gpu_harness.build(case.text, "simt", device.arch), KernelTimer(device)
    arrays = [gpu_harness.random(t, dims, i) for i, t in enumerate((*case.inputs, *case.results))]
    got = timer.run(built.kernel, built.code, dims, arrays)[-1]
    np.testing.assert_allclose(got, arrays[0] @ arrays[1], rtol=1e-4, atol=1e-3)
    found = timer.time(built.kernel, built.code, dims, arrays, repeats=5)
    assert len(found) == 5
    assert all(0 < t < 1 for t in found)
    (takes,) = timer.resources(built.kernel, built.code)
    assert 0 < takes.registers <= 255
    assert takes.resident_blocks > 0


def test_a_kernel_that_fails_says_so() -> None:
    done = run(PROGRAM + """
from tilewright.runtime.cuda.arena import gpu
loaded, device = fn._caller.loaded(gpu(0)), gpu(0).device
with gpu(0).current():
    room = device.alloc(1 << 20)
    loaded.call([1 << 60, room, room], [room], [], [37], int(device.stream.handle))
    try:
        device.sync()
    except CudaError as error:
        assert error.sticky, error
    else:
        raise AssertionError("no error")
try:
    fn(*given)
except CudaError as error:
    assert "lost for this process" in str(error), error
    import os
    os._exit(7)
""")
    assert done.returncode == 7, done.stderr


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_sanitizer_is_content(tool: str) -> None:
    command = shutil.which("compute-sanitizer")
    if command is None:
        pytest.skip("compute-sanitizer is not installed")
    done = run(PROGRAM, command, "--tool", tool, "--error-exitcode", "9")
    if "not supported" in done.stdout + done.stderr:
        pytest.skip("compute-sanitizer does not know this device")
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
