"""Small kernels between those of a model, as PTX: bytes that say what runs, how often a loop ran, and copies that go by them.

A branch or loop that depends on data has STATE_BYTES in the arena: at COUNT how often the loop's body ran, i64; at FLAG the byte
that its body goes by, 0 or 1; at OTHERWISE that of the other side of a branch. Each is written by one of these kernels alone, in
the order of the launches, and read by all kernels of the body, which return at once where it is 0.
"""

from __future__ import annotations

from enum import IntEnum

from tilewright.runtime.program.kernel import Launch

STATE_BYTES, COUNT, FLAG, OTHERWISE = 16, 0, 8, 9
COPY_THREADS, COPY_BLOCKS = 256, 1024
COPY_UNIT = 16  # bytes of a thread at a time, where both ends are aligned to them


class ControlKernel(IntEnum):
    """The kernels, by their place in a list of launches. Parameters are 8-byte words.

    COPY: target, source, bytes, the byte it goes by. TEST: target, outer, byte, negate: outer and byte, or its negation.
    BEGIN: flag, outer, count: a loop may run where outer is set; it has not yet. TURN: flag, byte, count: once more where both
    are set. SETTLE: target, start, other, bytes, count, the byte it goes by: a loop's result, which lies at start after no turn,
    at target after an odd number, else at other, comes to target. CONDITION: handle, byte: sets a condition of a CUDA graph.
    """

    COPY = 0
    TEST = 1
    BEGIN = 2
    TURN = 3
    SETTLE = 4
    CONDITION = 5


COUNTS = {ControlKernel.COPY: 4, ControlKernel.TEST: 4, ControlKernel.BEGIN: 3, ControlKernel.TURN: 3, ControlKernel.SETTLE: 6,
          ControlKernel.CONDITION: 2}
"""Parameters of each."""


def launches() -> dict[ControlKernel, Launch]:
    """How each is launched; the blocks of copies are those of `copy_blocks`."""
    moving = (ControlKernel.COPY, ControlKernel.SETTLE)
    return {k: Launch(symbol(k), ("1", "1", "1"), COPY_THREADS if k in moving else 1) for k in ControlKernel}


def symbol(kernel: ControlKernel) -> str:
    return f"tw_{kernel.name.lower()}"


def copy_blocks(size: int) -> int:
    """Blocks that copy so many bytes."""
    return min(COPY_BLOCKS, -(-size // (COPY_UNIT * COPY_THREADS)))


def control_ptx() -> str:
    """All but CONDITION; every GPU from sm_80 on runs it."""
    return _HEAD + _entry(ControlKernel.COPY, _COPY.replace("$RETURN$", _RETURN.replace("$P$", "3"))) \
        + _entry(ControlKernel.TEST, _TEST) + _entry(ControlKernel.BEGIN, _BEGIN) + _entry(ControlKernel.TURN, _TURN) \
        + _entry(ControlKernel.SETTLE, _SETTLE.replace("$RETURN$", _RETURN.replace("$P$", "5")))


def condition_ptx() -> str:
    """CONDITION, whose function the driver has from CUDA 12.4 on."""
    return _HEAD.replace(".version 7.0", ".version 8.4") + _EXTERN + _entry(ControlKernel.CONDITION, _CONDITION)


def _entry(kernel: ControlKernel, body: str) -> str:
    name = symbol(kernel)
    parameters = ", ".join(f".param .u64 p{i}" for i in range(COUNTS[kernel]))
    loads = "".join(f"  ld.param.u64 %p{i}, [p{i}];\n" for i in range(COUNTS[kernel]))
    threads = launches()[kernel].threads
    return f".visible .entry {name}({parameters})\n.reqntid {threads}, 1, 1\n{{\n{_REGISTERS}{loads}{body}  ret;\n}}\n"


_HEAD = """.version 7.0
.target sm_80
.address_size 64
"""
_EXTERN = ".extern .func cudaGraphSetConditional(.param .b64 tw_handle, .param .b32 tw_value);\n"
_REGISTERS = """  .reg .pred %q<8>;
  .reg .b16 %h<4>;
  .reg .b32 %r<8>;
  .reg .b64 %p<8>;
  .reg .b64 %d<12>;
  .reg .b64 %v<4>;
"""
_RETURN = """  ld.global.u8 %h0, [%p$P$];
  setp.eq.u16 %q0, %h0, 0;
  @%q0 ret;
"""
# Where outer is 0 nobody has written the byte.
_TEST = """  ld.global.u8 %h0, [%p1];
  setp.eq.u16 %q0, %h0, 0;
  @%q0 bra known;
  ld.global.u8 %h1, [%p2];
  setp.ne.u16 %q1, %h1, 0;
  setp.ne.u64 %q2, %p3, 0;
  xor.pred %q1, %q1, %q2;
  selp.u16 %h0, 1, 0, %q1;
known:
  st.global.u8 [%p0], %h0;
"""
_BEGIN = """  ld.global.u8 %h0, [%p1];
  st.global.u8 [%p0], %h0;
  mov.u64 %d0, 0;
  st.global.u64 [%p2], %d0;
"""
_TURN = """  ld.global.u8 %h0, [%p0];
  setp.eq.u16 %q1, %h0, 0;
  @%q1 ret;
  ld.global.u8 %h1, [%p1];
  setp.ne.u16 %q0, %h1, 0;
  selp.u16 %h2, 1, 0, %q0;
  st.global.u8 [%p0], %h2;
  ld.global.u64 %d0, [%p2];
  selp.u64 %d1, 1, 0, %q0;
  add.u64 %d0, %d0, %d1;
  st.global.u64 [%p2], %d0;
"""
# From %p1 to %p0, %p2 bytes: in units where both are aligned, the rest byte by byte.
_COPY = """$RETURN$  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mad.lo.u32 %r3, %r0, %r1, %r2;
  mov.u32 %r4, %nctaid.x;
  mul.lo.u32 %r5, %r4, %r1;
  cvt.u64.u32 %d0, %r3;
  cvt.u64.u32 %d1, %r5;
  or.b64 %d2, %p0, %p1;
  and.b64 %d2, %d2, 15;
  setp.ne.u64 %q1, %d2, 0;
  and.b64 %d3, %p2, -16;
  selp.u64 %d3, 0, %d3, %q1;
  shl.b64 %d4, %d0, 4;
  shl.b64 %d5, %d1, 4;
units:
  setp.ge.u64 %q2, %d4, %d3;
  @%q2 bra tail;
  add.u64 %d6, %p1, %d4;
  add.u64 %d7, %p0, %d4;
  ld.global.v2.u64 {%v0, %v1}, [%d6];
  st.global.v2.u64 [%d7], {%v0, %v1};
  add.u64 %d4, %d4, %d5;
  bra units;
tail:
  add.u64 %d4, %d3, %d0;
bytes:
  setp.ge.u64 %q3, %d4, %p2;
  @%q3 bra done;
  add.u64 %d6, %p1, %d4;
  add.u64 %d7, %p0, %d4;
  ld.global.u8 %h1, [%d6];
  st.global.u8 [%d7], %h1;
  add.u64 %d4, %d4, %d1;
  bra bytes;
done:
"""
_SETTLE = """  ld.global.u64 %d8, [%p4];
  and.b64 %d9, %d8, 1;
  setp.ne.u64 %q4, %d9, 0;
  @%q4 ret;
  setp.eq.u64 %q5, %d8, 0;
  selp.u64 %p1, %p1, %p2, %q5;
  mov.u64 %p2, %p3;
""" + _COPY
_CONDITION = """  ld.global.u8 %h0, [%p1];
  cvt.u32.u16 %r0, %h0;
  {
  .param .b64 a;
  .param .b32 b;
  st.param.b64 [a], %p0;
  st.param.b32 [b], %r0;
  call.uni cudaGraphSetConditional, (a, b);
  }
"""
