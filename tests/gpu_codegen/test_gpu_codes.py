"""PTX of `gpu_codes`: codes come by loads of 16 bytes, values are made of them without conversions, and nothing is spilled."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from codes_workloads import Coded, Pooled
from gpu_codegen.test_tensor_cores import clean, needs_ptxas
from gpu_harness import build

from tilewright.compiler.builder.ptxas import assemble_ptx
from tilewright.passes.spaces.family_registry import config_text
from tilewright.passes.spaces.gpu.gpu_codes import GpuCodesConfig
from tilewright.passes.spaces.gpu.gpu_codes_heuristics import default
from tilewright.passes.spaces.gpu.gpu_rates import reached
from tilewright.runtime.limits import GpuLimits
from tilewright.runtime.program.dispatch import select

WEIGHTS = {"8 bits": Coded(2048, 2048, 8, 32), "4 bits": Coded(2048, 2048),
           "4 bits, zero points": Coded(2048, 2048, 4, 128, "u8"), "2 bits": Coded(2048, 2048, 2, 128),
           "1 bit": Coded(2048, 2048, 1, 128),
           "4 bits, halves": Coded(2048, 2048, element="f16"),
           "4 bits, pairs": Coded(2048, 2048, 4, 128, element="f16", scales="f16"),
           "4 bits, pairs and zero points": Coded(2048, 2048, 4, 128, "u8", element="bf16", scales="bf16"),
           "8 bits, pairs": Coded(2048, 2048, 8, 128, element="f16", scales="f16"),
           "2 bits, bf16": Coded(2048, 2048, 2, 128, element="bf16"),
           "pool": Pooled(2048, 2048), "two books": Pooled(2048, 2048, 256, 2, "f16", None)}


@pytest.mark.sampled(6)
@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_defaults_read_whole_codes_and_spill_nothing(name: str, arch: str) -> None:
    workload, _ = WEIGHTS[name].workload(None)
    for config in default(workload, GpuLimits.of(arch))[0]:
        if not isinstance(config, GpuCodesConfig):
            continue
        text = build(workload.ir, config_text(config), arch).code.decode()
        clean(assemble_ptx(text, arch))
        assert config.bytes >= (8 if config.rows == 1 else 2 if "books" in name else 4)


@needs_ptxas
@pytest.mark.parametrize("weight", [Coded(2048, 2048), Coded(2048, 2048, element="f16")], ids=["f32", "f16"])
def test_no_byte_of_codes_is_read_by_itself_and_none_is_converted(weight: Coded) -> None:
    """Of one row: a load of 16 bytes a column for 32 codes, a scale for each of them."""
    workload, _ = weight.workload(None)
    config = next(c for c in default(workload, GpuLimits.of("sm_90a"))[0] if isinstance(c, GpuCodesConfig))
    text = build(workload.ir, config_text(config), "sm_90a").code.decode()
    assert config.bytes == 16 and not re.search(r"ld\.global\S*\.[bus]8|cvt\.rn\.f32\.[us]", text)
    loads = re.findall(r"ld\.global\.nc\.(\S+)", text)
    assert loads.count("b32") == config.columns and loads.count("v4.b32") == config.columns + 32 // config.vec


@needs_ptxas
def test_codes_with_scales_of_the_type_of_rows_become_pairs() -> None:
    """A mask and an or for two codes, one subtraction and one multiplication, and no conversion."""
    workload, _ = WEIGHTS["4 bits, pairs"].workload(None)
    config = next(c for c in default(workload, GpuLimits.of("sm_90a"))[0] if isinstance(c, GpuCodesConfig))
    text = build(workload.ir, config_text(replace(config, ahead=False)), "sm_90a").code.decode()
    pairs = config.columns * 32 // 2
    assert text.count("lop3.b32") == len(re.findall(r"mul\S*\.f16x2", text)) == pairs
    assert len(re.findall(r"(?:add|sub|fma)\S*\.f16x2", text)) == pairs
    assert len(re.findall(r"mma\.sync", text)) == pairs // 4
    assert len(re.findall(r"cvt\.\S*f16", text)) <= 1  # of the result


@pytest.mark.parametrize("n, k, parts, held", [(2048, 2048, 4, 4), (4096, 2048, 4, 5), (5120, 2048, 2, 4), (14336, 1024, 1, 4)])
def test_all_blocks_run_at_once(n: int, k: int, parts: int, held: int) -> None:
    """An H100 holds 30 clusters of 4 at a block each: 512 blocks want 5 a multiprocessor, and 640 would take two turns."""
    limits = GpuLimits.of("sm_90a")
    workload, _ = Coded(n, k, 4, 128, element="f16", scales="f16").workload(None)
    configs, root = default(workload, limits)
    for rows in (1, 8, 16):
        config = configs[select(root, {workload.dims[0]: rows}).kernel]
        assert isinstance(config, GpuCodesConfig) and (config.cluster_k, config.min_blocks_per_sm) == (parts, held)
        assert -(-n // config.bn) * parts <= reached(parts, limits) * held
        several = k > parts * 512  # a step is of 512 values
        assert (config.unroll, config.ahead) == (2 if several and rows <= 8 else 1, several and rows > 8)


def test_few_rows_of_codes_are_this_family_s_and_more_another_s() -> None:
    workload, _ = Coded(2048, 2048).workload(None)
    configs, root = default(workload, GpuLimits.of("sm_90a"))
    families = [configs[select(root, {workload.dims[0]: rows}).kernel].family for rows in (1, 16, 17, 99)]
    assert families == ["gpu_codes", "gpu_codes", "simt", "simt"]
