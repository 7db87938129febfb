"""Names of CPU features: /proc/cpuinfo's in LLVM's words, for programs that are loaded where there is no LLVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.runtime.host import host_cpu
from tilewright.runtime.host import host_target as host_target_module
from tilewright.runtime.host.host_target import LEVELS, host_target
from tilewright.runtime.target import Target, TargetKind


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


def test_code_uses_nothing_that_a_hypervisor_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest whose CPU is named znver4 and shows no AVX-512."""
    llvm = pytest.importorskip("llvmlite.binding")
    if host_cpu.machine() != "x86_64":
        pytest.skip("x86-64")
    level = set(LEVELS["x86-64-v3"])
    asked = {name: name in level for name in (*level, *LEVELS["x86-64-v4"], "avx512vnni", "avx512bf16", "avx512vbmi")}
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: "znver4")
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: asked)
    monkeypatch.setattr(host_target_module, "cpu_features", lambda: frozenset(level))
    found = host_target(Target(TargetKind.HOST))
    assert found.cpu == "znver4" and found.required() == level
    triple = found.triple
    code = f"""target triple = "{triple}"
    define void @double(ptr %a) {{
      %v = load <16 x float>, ptr %a
      %w = fadd <16 x float> %v, %v
      store <16 x float> %w, ptr %a
      ret void
    }}"""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    as_sold, here = (llvm.Target.from_triple(triple).create_target_machine(cpu=found.cpu, features=features).emit_assembly(
        llvm.parse_assembly(code)) for features in (",".join(f"+{name}" for name in sorted(level)), found.features))
    assert "zmm" in as_sold and "zmm" not in here and "ymm" in here


@pytest.mark.parametrize("listed", [{}, {"sve": True}])
def test_vectors_of_any_length_only_where_they_are_listed(listed: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest named neoverse-v1: LLVM lists what there is."""
    llvm = pytest.importorskip("llvmlite.binding")
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: "neoverse-v1")
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: {"neon": True, **listed})
    monkeypatch.setattr(host_target_module, "machine", lambda: "aarch64")
    monkeypatch.setattr(host_target_module, "cpu_features", lambda: frozenset({"neon", *listed}))
    found = host_target(Target(TargetKind.HOST))
    assert found.required() == {"neon", *listed} and ("-sve" in found.features.split(",")) is not bool(listed)
