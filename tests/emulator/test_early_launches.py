"""Launches that a GPU may begin before those in front of them have ended: what a kernel does before it waits for them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from emulator.harness import HEADER
from tensor_core_workloads import product

from tilewright.compiler.builder.build import build_kernel
from tilewright.runtime.emulator import EmulatorDevice, EmulatorError
from tilewright.runtime.target import Target

WAIT = "griddepcontrol.wait;"
STORE = "st.global.u32 [%rd1], %r1;"


def launched(body: str, early: bool = True) -> str:
    """The finding of a kernel with one pointer, or ""."""
    text = (f"{HEADER}.visible .entry k(.param .u64 out)\n{{ .reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p<2>;\n"
            f".shared .align 8 .b8 kept[128];\n{body}\nret; }}\n")
    device = EmulatorDevice("sm_90a")
    out = device.upload(np.zeros(32, np.uint32))
    try:
        device.launch(device.load(text).kernel("k"), (1, 1, 1), (32, 1, 1), 0, [out], early=early)
    except EmulatorError as error:
        assert error.finding is not None
        return error.finding.check.value
    return ""


@pytest.mark.parametrize("body,found", [
    (f"ld.param.u64 %rd1, [out]; mov.u32 %r1, 7; {WAIT} {STORE}", False),
    (f"mov.u32 %r1, kept; mov.u32 %r2, %tid.x; mad.lo.u32 %r1, %r2, 4, %r1; st.shared.u32 [%r1], %r1; {WAIT}"
     f"ld.param.u64 %rd1, [out]; {STORE}", False),
    (f"ld.param.u64 %rd1, [out]; mov.u32 %r1, 7; {STORE} {WAIT}", True),
    (f"ld.param.u64 %rd1, [out]; ld.global.u32 %r1, [%rd1]; {WAIT} {STORE}", True),
    (f"ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 bra $L; {WAIT} $L: {STORE}", True),
    (f"ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 bra $L; mov.u32 %r1, 3; $L: {WAIT} {STORE}",
     False),
    (f"ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 9; @%p1 {WAIT} {STORE}", True),
    (f"ld.param.u64 %rd1, [out]; mov.u32 %r1, 7; griddepcontrol.launch_dependents; {STORE}", True),
])
def test_what_stands_before_the_wait(body: str, found: bool) -> None:
    assert launched(body) == ("access-before-wait" if found else "")
    assert launched(body, early=False) == ""


def test_kernels_wait_from_sm_90_on() -> None:
    """In front of everything that touches memory, in all launches of a kernel; older ones are not launched early."""
    case = product("m k,k n,m n", sizes={"K": 64, "N": 64})
    made = build_kernel(case.text, "", "kernel", "gemv{rows=8 warps=2 vec=8 tensor=true split-k=2}", Target.parse("cuda:sm_90a"))
    assert [step.early for step in made.kernel.launches()] == [True, True]
    bodies = re.findall(r"\.entry[^{]*\{(.*?)\n\}", made.code.decode(), re.DOTALL)
    assert len(bodies) == 2
    for body in bodies:
        before, _, after = body.partition(WAIT)
        assert "griddepcontrol.launch_dependents;" in after and not re.search(r"\b(ld|st)\.(?!param)|bra", before)
    old = build_kernel(case.text, "", "kernel", "gemv{rows=8 warps=2 vec=8 tensor=true}", Target.parse("cuda:sm_80"))
    assert not old.kernel.early and "griddepcontrol" not in old.code.decode()
