"""Device functions, blocks of odd size, grids in batches, and the program's layout."""

from __future__ import annotations

import numpy as np
import pytest
from emulator.harness import HEADER, kernel, run

from tilewright.runtime.emulator import EmulatorDevice, EmulatorError

FUNCTIONS = """
.func (.param .b32 out) square(.param .b32 in)
{
    .reg .b32 %r<4>; .reg .pred %p<2>;
    ld.param.b32 %r1, [in];
    setp.gt.u32 %p1, %r1, 10;
    @%p1 bra BIG;
    mul.lo.u32 %r2, %r1, %r1;
    st.param.b32 [out+0], %r2;
    ret;
BIG:
    st.param.b32 [out+0], 7;
    ret;
}
.func (.param .b32 out) twice(.param .b32 in)
{
    .reg .b32 %r<4>;
    ld.param.b32 %r1, [in];
    { .param .b32 p; .param .b32 q; st.param.b32 [p], %r1; call.uni (q), square, (p); ld.param.b32 %r2, [q]; }
    { .param .b32 p; .param .b32 q; st.param.b32 [p], %r2; call.uni (q), square, (p); ld.param.b32 %r3, [q]; }
    add.u32 %r3, %r3, %r2;
    st.param.b32 [out], %r3;
    ret;
}
"""
CALL = """
    { .param .b32 p; .param .b32 q; st.param.b32 [p], %r0; call.uni (q), twice, (p); ld.param.b32 %r20, [q]; }
    mul.wide.u32 %rd10, %r0, 4; add.s64 %rd10, %rd0, %rd10; st.global.b32 [%rd10], %r20;
"""


def square(x: int) -> int:
    return x * x if x <= 10 else 7


def test_functions_are_called() -> None:
    got = run(kernel(CALL, module=FUNCTIONS), (), [((32,), np.uint32)])[0]
    assert got.tolist() == [square(square(t)) + square(t) for t in range(32)]


def test_recursion_and_unknown_functions_are_refused() -> None:
    with pytest.raises(EmulatorError, match="recursive"):
        run(kernel(CALL, module=FUNCTIONS.replace("call.uni (q), square", "call.uni (q), twice")))
    with pytest.raises(EmulatorError, match="does not define"):
        run(kernel(CALL))
    with pytest.raises(EmulatorError, match="does not match"):
        run(kernel(CALL.replace("(p);", "(p, p);", 1), module=FUNCTIONS))


def test_a_grid_runs_in_batches() -> None:
    body = """
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z; mov.u32 %r4, %nctaid.x; mov.u32 %r5, %nctaid.y;
    mad.lo.u32 %r2, %r3, %r5, %r2; mad.lo.u32 %r1, %r2, %r4, %r1;
    mov.u32 %r6, %tid.y; mov.u32 %r7, %ntid.x; mad.lo.u32 %r6, %r6, %r7, %r0; mad.lo.u32 %r8, %r1, 60, %r6;
    mul.wide.u32 %rd10, %r8, 4; add.s64 %rd10, %rd0, %rd10; st.global.b32 [%rd10], %r8;
    """
    got = run(kernel(body), (), [((30000,), np.uint32)], grid=(10, 10, 5), block=(20, 3, 1))[0]
    np.testing.assert_array_equal(got, np.arange(30000))


def test_shared_memory_is_laid_out() -> None:
    module = ".extern .shared .align 1024 .b8 dyn[]; .shared .align 8 .b8 first[12];"
    text = f"{HEADER}{module}\n.visible .entry k() {{ .shared .align 4 .b8 second[4]; .reg .b64 %rd<4>; ret; }}"
    program = EmulatorDevice().load(text).kernel("k")
    assert program.static_shared == 1024 and program.dynamic_align == 1024


def test_memory_is_reused_only_at_its_own_size() -> None:
    device = EmulatorDevice(memory_bytes=1 << 20)
    first = device.alloc(1000)
    device.free(first)
    assert device.alloc(5000) != first
    assert device.alloc(900) == first
    with pytest.raises(EmulatorError, match="1048576 bytes"):
        device.alloc(1 << 20)
