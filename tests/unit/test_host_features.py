"""Names of CPU features: /proc/cpuinfo's in LLVM's words, for programs that are loaded where there is no LLVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.runtime.host import host_cpu


def test_features_of_the_kernel_in_the_words_of_llvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "processor\t: 0\nflags\t\t: fpu sse4_2 avx512_bf16 avx512_vnni amx_bf16 amx_tile amx_int8 amx_fp16 abm\n\np\t: 1\n"
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(host_cpu, "_CPUINFO", tmp_path / "cpuinfo")
    wanted = {"sse4.2", "avx512bf16", "avx512vnni", "amx-bf16", "amx-tile", "amx-int8", "amx-fp16", "lzcnt"}
    assert host_cpu.cpu_features() == wanted | {"fpu"}


def test_no_feature_that_llvm_compiles_for_is_missing_on_this_cpu() -> None:
    llvm = pytest.importorskip("llvmlite.binding")
    found = {name for name, on in llvm.get_host_cpu_features().items() if on}
    named = {f for f in found if f.startswith(("amx", "avx")) and not f.startswith("avx10")}  # Linux names what that brings
    assert named <= host_cpu.cpu_features()
