"""Clusters by hand: shared memory of other blocks, cluster barriers, multicast, and what the checks find."""

from __future__ import annotations

import numpy as np
import pytest
from emulator.harness import HEADER, REGISTERS
from emulator.test_async_proxy import START, WAIT, tensor_map

from tilewright.runtime.emulator import EmulatorDevice, EmulatorError

MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
RELAXED = "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"  # tells of mbarriers behind a fence of their own
EXCHANGE = """
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %cluster_ctarank; xor.b32 %r3, %r2, 1; mad.lo.u32 %r4, %r1, 32, %r0;
mul.wide.u32 %rd1, %r0, 4; mov.b64 %rd2, buffer; add.s64 %rd3, %rd2, %rd1; st.shared.b32 [%rd3], %r4;
{meet}
mapa.shared::cluster.u64 %rd4, %rd3, %r3; ld.shared::cluster.b32 %r5, [%rd4];
mul.wide.u32 %rd5, %r4, 4; add.s64 %rd6, %rd0, %rd5; st.global.b32 [%rd6], %r5;
{leave}
"""


def launch(device: EmulatorDevice, body: str, arguments: list[int | bytes], maps: int = 0, blocks: int = 4, cluster: int = 2,
           threads: int = 32) -> None:
    names = [f".param .align 64 .b8 p{i}[128]" if i < maps else f".param .u64 p{i}" for i in range(len(arguments))]
    loads = [f"mov.b64 %rd60, p{i}; cvta.param.u64 %rd{i}, %rd60;" if i < maps else f"ld.param.b64 %rd{i}, [p{i}];"
             for i in range(len(arguments))]
    text = (f"{HEADER}.extern .shared .align 1024 .b8 buffer[];\n.visible .entry k({', '.join(names)})\n"
            f".reqnctapercluster 2, 1, 1\n{{{REGISTERS}{' '.join(loads)} mov.u32 %r0, %tid.x; {body} ret; }}\n")
    device.launch(device.load(text).kernel("k"), (blocks, 1, 1), (threads, 1, 1), 8192, arguments, (cluster, 1, 1))


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_blocks_read_each_others_shared_memory(seed: int | None) -> None:
    device = EmulatorDevice(seed=seed)
    out = device.alloc(512)
    launch(device, EXCHANGE.format(meet=MEET, leave=MEET), [out])
    np.testing.assert_array_equal(device.copy_out(out, (4, 32), np.int32), np.arange(128).reshape(4, 32)[[1, 0, 3, 2]])


@pytest.mark.parametrize("body,wanted", [
    (EXCHANGE.format(meet="", leave=MEET), "shared-memory-race|uninitialised"),
    (EXCHANGE.format(meet=RELAXED, leave=MEET), "shared-memory-race"),
    (EXCHANGE.format(meet="barrier.cluster.arrive; barrier.cluster.arrive;", leave=MEET), "twice"),
    (EXCHANGE.format(meet="barrier.cluster.wait;", leave=""), "has not arrived"),
    (EXCHANGE.format(meet=MEET, leave=MEET).replace("xor.b32 %r3, %r2, 1", "add.s32 %r3, %r2, 1"), "rank 2 of a cluster of 2"),
    (EXCHANGE.format(meet=MEET, leave="").replace("%cluster_ctarank;", "%cluster_ctarank; setp.eq.u32 %p1, %r2, 1; @%p1 bra END;")
     + " END:", "has exited|uninitialised"),
])
def test_mistakes_in_a_cluster_are_found(body: str, wanted: str) -> None:
    found = set()
    for seed in (None, 0, 1, 2):
        device = EmulatorDevice(seed=seed)
        try:
            launch(device, body, [device.alloc(512)])
        except EmulatorError as error:
            found.add(str(error))
    assert found
    assert any(w in text for text in found for w in wanted.split("|")), found


BROADCAST = START.format(at="buffer+4096", count=1) + "{meet}" + """
mov.u32 %r1, %ctaid.x; setp.ne.b32 %p2, %r0, 0; @%p2 bra ISSUED; mbarrier.arrive.expect_tx.shared.b64 %rd5, [buffer+4096], 1024;
mov.u32 %r2, %cluster_ctarank; mul.lo.u32 %r3, %r2, 4; mul.wide.u32 %rd40, %r2, 512; mov.b64 %rd41, buffer;
add.s64 %rd42, %rd41, %rd40; cvta.shared.u64 %rd43, %rd42; cvta.to.shared::cluster.u64 %rd42, %rd43; mov.b16 %rs1, {mask};
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%rd42], [%rd0, {{0, %r3}}],
[buffer+4096], %rs1; ISSUED:""" + WAIT.format(at="buffer+4096", parity=0).replace("{", "{{").replace("}", "}}") + """
mov.b64 %rd44, buffer; mul.wide.u32 %rd45, %r0, 32; add.s64 %rd46, %rd44, %rd45; mul.wide.u32 %rd47, %r1, 1024;
add.s64 %rd47, %rd47, %rd45; add.s64 %rd47, %rd1, %rd47;
ld.shared.v4.b32 {{%r2, %r3, %r4, %r5}}, [%rd46]; st.global.v4.b32 [%rd47], {{%r2, %r3, %r4, %r5}};
ld.shared.v4.b32 {{%r2, %r3, %r4, %r5}}, [%rd46+16]; st.global.v4.b32 [%rd47+16], {{%r2, %r3, %r4, %r5}}; {leave}"""


@pytest.mark.parametrize("mask,meet,wanted", [(3, MEET, ""), (3, RELAXED, ""), (1, MEET, "deadlock"),
                                              (7, MEET, "mask 0x7 of a cluster of 2"), (3, "", "mbarrier")])
def test_multicast(mask: int, meet: str, wanted: str) -> None:
    """Each block brings half of a box to both."""
    source = np.arange(512, dtype=np.float16).reshape(8, 64)
    found = set()
    for seed in (None, 0, 1, 2):
        device = EmulatorDevice(seed=seed)
        parameter, _ = tensor_map(device, source, (64, 4))
        out = device.alloc(2048)
        try:
            launch(device, BROADCAST.format(mask=mask, meet=meet, leave=MEET), [parameter, out], 1, 2)
            np.testing.assert_array_equal(device.copy_out(out, (2, 8, 64), np.float16), np.stack([source, source]))
        except EmulatorError as error:
            found.add(str(error))
    assert not found if not wanted else any(wanted in text for text in found), found


@pytest.mark.parametrize("blocks,cluster,wanted", [(3, 2, "not a multiple"), (4, 4, "reqnctapercluster")])
def test_launches_are_checked(blocks: int, cluster: int, wanted: str) -> None:
    device = EmulatorDevice()
    with pytest.raises(EmulatorError, match=wanted):
        launch(device, MEET, [device.alloc(16)], 0, blocks, cluster)
