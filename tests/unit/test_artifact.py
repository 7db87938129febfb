"""Saved models: they run in a process without the compiler, and every kind of damage is told apart."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tilewright.runtime.errors import ArtifactError, OptionError
from tilewright.runtime.host import host_cpu, required_features
from tilewright.runtime.host import host_target as host_target_module
from tilewright.runtime.host.cpu import HostDevice
from tilewright.runtime.host.host_cpu import cpu_features, machine
from tilewright.runtime.host.host_target import host_target
from tilewright.runtime.host.recompile import recompile
from tilewright.runtime.host.thread_pool import runtime_object_ir
from tilewright.runtime.load import function
from tilewright.runtime.load.function import CompiledFunction, load
from tilewright.runtime.program.artifact import Artifact, Bundle
from tilewright.runtime.program.artifact_writer import write_artifact
from tilewright.runtime.program.dispatch import DispatchTable, Leaf
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.program.program import SCHEMA, Argument, Call, Constant, DimInfo, Program
from tilewright.runtime.program.seal import seal_ir
from tilewright.runtime.target import Target
from tilewright.runtime.tensor import DType

pytest.importorskip("llvmlite", reason="the test makes its own object code")

HOST = """
define i64 @tw_call(ptr %table, ptr %tensors, ptr %scalars, ptr %dims, i64 %threads) {
  %slots = alloca [4 x i64]
  call void @llvm.memcpy.p0.p0.i64(ptr %slots, ptr %tensors, i64 24, i1 false)
  %units = load i64, ptr %dims
  %kernels_at = getelementptr i64, ptr %table, i64 1
  %kernels = load ptr, ptr %kernels_at
  %kernel = load ptr, ptr %kernels
  %for_at = getelementptr i64, ptr %table, i64 3
  %for = load ptr, ptr %for_at
  call void %for(ptr %table, ptr %kernel, ptr %slots, i64 %units, i64 %threads, ptr null, i64 0)
  ret i64 0
}
"""
KERNEL = """
define void @twice_plus(ptr %slots, i64 %begin, i64 %end, ptr %workspace) "target-features"="+no-such-feature" {
entry:
  %x = load ptr, ptr %slots
  %w_at = getelementptr i64, ptr %slots, i64 1
  %w = load ptr, ptr %w_at
  %y_at = getelementptr i64, ptr %slots, i64 2
  %y = load ptr, ptr %y_at
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %loop, label %exit
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %xi_at = getelementptr float, ptr %x, i64 %i
  %xi = load float, ptr %xi_at
  %wi_at = getelementptr float, ptr %w, i64 %i
  %wi = load float, ptr %wi_at
  %two = fmul float %xi, 2.0
  %sum = fadd float %two, %wi
  %yi_at = getelementptr float, ptr %y, i64 %i
  store float %sum, ptr %yi_at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""
WEIGHT = np.arange(64, dtype=np.float32)
X = np.linspace(-1, 1, 40, dtype=np.float32)


def made(machine_of: bytes | None = None, **fields: Any) -> Bundle:
    """A model of handwritten code, sealed as the compiler does it.

    Args:
        machine_of: the ELF machine that its code says it is for. fields: of the program, in place of those here.
    """
    texts = {"k": KERNEL, "r": runtime_object_ir(machine())}
    built = {key: elsewhere(code, machine_of) for key, code in recompile(texts).items()}
    digest = {key: hashlib.sha256(code).hexdigest() for key, code in built.items()}
    kernel = MicroKernel("twice_plus", "w", "generic", "plain", (), ("T", "1", "1"), digest["k"])
    constant = hashlib.sha256(WEIGHT.tobytes()).hexdigest()
    values: dict[str, Any] = {
        "target": "host", "features": "", "dims": (DimInfo("T", 1, 64, at=("arg0.0",)),),
        "inputs": (Argument("arg0", DType.F32, ("T",)),), "outputs": (Argument("result0", DType.F32, ("T",)),),
        "constants": (Constant("arg1", DType.F32, (64,), constant),),
        "tables": (DispatchTable("w", "twice", ("T",), (kernel,), Leaf(0)),), "calls": (Call(0, ("T",)),), "checks": (),
        "arena": "0", "host_object": "", "runtime_object": digest["r"], "source": "module {}",
        "dispatch_source": "twice: plain", **fields}  # fmt: skip
    program = Program(**values)
    texts["h"] = HOST + seal_ir("host", program)
    built["h"] = elsewhere(recompile({"h": texts["h"]})["h"], machine_of)
    digest["h"] = hashlib.sha256(built["h"]).hexdigest()
    program = msgspec.structs.replace(program, host_object=digest["h"])
    return Bundle(program, {digest[key]: code for key, code in built.items()}, {constant: WEIGHT},
                  {digest[key]: text for key, text in texts.items()})


def elsewhere(code: bytes, number: bytes | None) -> bytes:
    """Code that says it is for another machine."""
    return code if number is None else code[:18] + number + code[20:]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return made()


@pytest.fixture
def saved(bundle: Bundle, tmp_path: Path) -> Path:
    path = tmp_path / "model.tw"
    device = HostDevice(bytes(bundle.code[bundle.program.runtime_object]))
    CompiledFunction(bundle.program, bundle.code, bundle.constants, device, llvm_ir=bundle.llvm_ir).save(path)
    return path


def check(fn: CompiledFunction) -> None:
    for count in (1, 7, 40):
        np.testing.assert_array_equal(fn(X[:count]), 2 * X[:count] + WEIGHT[:count])
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(fn(X, threads=threads), 2 * X + WEIGHT[:40])


def test_a_saved_model_runs_and_can_be_saved_again(saved: Path) -> None:
    fn = load(saved, verify="full")
    check(fn)
    assert fn.dispatch_source() == "twice: plain" and fn.program.source == "module {}"
    fn.save(saved)
    check(load(saved))
    check(fn)
    with pytest.raises(OptionError, match="verify='all': wanted 'lazy', 'full' or 'none'"):
        load(saved, verify="all")  # type: ignore[arg-type]


@pytest.mark.parametrize("shared", [False, True])
def test_sections_lie_at_64_bytes_and_constants_are_read_once(saved: Path, shared: bool) -> None:
    opened = Artifact(saved)
    assert {s.offset % 64 for s in opened.manifest.sections} == {0}
    constants = next(opened.bundles("host")).constants(shared=shared)
    assert not constants.are_read()
    (memory,) = constants.values()
    assert memory.readonly and np.frombuffer(memory, np.float32).ctypes.data % 64 == 0
    assert constants.are_read() and next(iter(constants.values())) is memory
    assert saved.read_bytes().count(WEIGHT.tobytes()) == 1


def test_loading_needs_neither_compiler_nor_llvm(saved: Path) -> None:
    script = (
        "import sys, numpy as np, tilewright as tw\n"
        f"y = tw.load({str(saved)!r})(np.ones(3, np.float32))\n"
        "assert y.tolist() == [2, 3, 4], y\n"
        "heavy = {'torch_mlir', 'xgboost', 'emcee', 'scipy', 'torch', 'ml_dtypes', 'llvmlite'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr


def damage(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def flip(path: Path, name: str) -> None:
    """Change one byte in the middle of a section."""
    opened = Artifact(path)
    section = next(s for s in opened.manifest.sections if s.name.startswith(name))
    at = path.read_bytes().index(bytes(opened.section(section.name))) + section.size // 2
    damage(path, at, bytes([path.read_bytes()[at] ^ 1]))


@pytest.mark.parametrize("name", ["program/", "code/"])
def test_damaged_code_is_found_at_load(saved: Path, name: str) -> None:
    flip(saved, name)
    with pytest.raises(ArtifactError, match=f"damaged: section {name}.* does not match its hash"):
        load(saved)


def test_damaged_constants_are_found_when_they_are_first_read(saved: Path) -> None:
    flip(saved, "constant/")
    fn = load(saved)
    for _ in range(2):
        with pytest.raises(ArtifactError, match=r"damaged: section constant/.* does not match its hash"):
            fn(X)
    with pytest.raises(ArtifactError, match="damaged: section constant/"):
        fn.save(saved.parent / "copy.tw")
    with pytest.raises(ArtifactError, match="damaged: section constant/"):
        load(saved, verify="full")
    with pytest.raises(ArtifactError, match="damaged: section constant/"):
        load(saved, shared=True)(X)
    assert load(saved, verify="none")(X).shape == X.shape


@pytest.mark.parametrize(
    ("keep", "words"), [(0.9, "truncated: wanted"), (100, "truncated"), (20, "truncated: 20 bytes")]
)
def test_truncated(saved: Path, keep: float, words: str) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(keep * len(content)) if keep < 1 else int(keep)])
    with pytest.raises(ArtifactError, match=words):
        load(saved)


def test_other_files(saved: Path, tmp_path: Path) -> None:
    for content in (b"", b"PK\3\4 a zip archive", bytes(4096)):
        saved.write_bytes(content)
        with pytest.raises(ArtifactError, match="is not a Tilewright model"):
            load(saved)
    with pytest.raises(ArtifactError, match=r"cannot read .*nothing\.tw: No such file"):
        load(tmp_path / "nothing.tw")
    with pytest.raises(ArtifactError, match="cannot read"):
        load(tmp_path)


def test_another_version(saved: Path) -> None:
    damage(saved, 8, struct.pack("<I", 99))
    with pytest.raises(ArtifactError, match=f"has format 99 and this Tilewright reads {SCHEMA}; compile the model again"):
        load(saved)


@pytest.mark.parametrize("schema", range(1, SCHEMA))
def test_versions_that_cannot_be_held_against_their_code_are_refused(saved: Path, schema: int) -> None:
    damage(saved, 8, struct.pack("<I", schema))
    with pytest.raises(ArtifactError, match=f"has format {schema} and this Tilewright reads {SCHEMA}; compile the model again"):
        load(saved)


def test_a_damaged_manifest(saved: Path) -> None:
    at = saved.read_bytes().index(b'"size"')
    damage(saved, at, b'"sIze"')
    with pytest.raises(ArtifactError, match="its manifest does not match its hash"):
        load(saved)


def test_a_manifest_that_lies(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    magic, schema, length, whole, signed, _ = struct.unpack_from("<8sIIQQ32s", content)
    manifest = json.loads(content[64 : 64 + length])
    manifest["sections"][0]["offset"] = 9 * 10 ** (len(str(manifest["sections"][0]["offset"])) - 1)
    manifest["sections"][1]["offset"] = 10**12
    text = json.dumps(manifest, separators=(",", ":")).encode()
    header = struct.pack("<8sIIQQ32s", magic, schema, len(text), whole, signed, hashlib.sha256(text).digest())
    saved.write_bytes((header + text).ljust(whole, b"\0")[:whole])
    with pytest.raises(ArtifactError, match="lies outside the file"):
        load(saved)


def test_writing_says_what_is_wrong_and_leaves_nothing(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArtifactError, match=r"the folder .*missing does not exist"):
        write_artifact(tmp_path / "missing" / "model.tw", [bundle])
    with pytest.raises(ArtifactError, match="is a folder"):
        write_artifact(tmp_path, [bundle])
    old = tmp_path / "model.tw"
    old.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match="No space left on device"):
        write_artifact(old, [bundle])
    assert old.read_bytes() == b"old" and list(tmp_path.iterdir()) == [old]


@pytest.fixture(scope="module")
def lacking() -> Bundle:
    """A model for a CPU that does not exist."""
    return made(b"\0\0", features="+no-such-feature")


def test_a_lacking_feature_recompiles_or_is_named(
    lacking: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.tw"
    write_artifact(path, [lacking])
    fn = load(path)
    check(fn)
    fn.save(path)  # the code that was stored, not the one that was made for this machine
    check(load(path, verify="full"))
    monkeypatch.setattr(function, "can_recompile", lambda: False)
    with pytest.raises(ArtifactError, match="needs ELF machine 0, which this CPU lacks; install llvmlite"):
        load(path)
    write_artifact(path, [dataclasses.replace(lacking, llvm_ir={})])
    with pytest.raises(ArtifactError, match="needs ELF machine 0, which this CPU lacks, and holds no LLVM IR"):
        load(path)
    write_artifact(path, [dataclasses.replace(made(features="+no-such-feature"), llvm_ir={})])
    with pytest.raises(ArtifactError, match="needs no-such-feature, which this CPU lacks, and holds no LLVM IR"):
        load(path)


def test_code_of_another_architecture_is_refused(tmp_path: Path) -> None:
    here = load_of(made(), tmp_path / "here.tw")
    other = "aarch64" if machine() == "x86_64" else "x86_64"
    theirs = made(b"\0\0")
    digest = theirs.program.runtime_object
    llvm_ir = {**theirs.llvm_ir, digest: runtime_object_ir(other)}  # LLVM would end the process over its instructions
    write_artifact(tmp_path / "there.tw", [dataclasses.replace(theirs, llvm_ir=llvm_ir)])
    for door in (load, here.reload):
        with pytest.raises(ArtifactError, match=f"instructions of {other}, and is to run on {machine()}"):
            door(tmp_path / "there.tw")
    check(here)


def load_of(bundle: Bundle, path: Path) -> Any:
    write_artifact(path, [bundle])
    return load(path)


def test_llvm_ir_of_another_model_is_refused(lacking: Bundle, tmp_path: Path) -> None:
    other = made(source="module { }")
    swapped = {d: other.llvm_ir[other.program.host_object] if "@tw_call" in text else text for d, text in lacking.llvm_ir.items()}
    write_artifact(tmp_path / "model.tw", [dataclasses.replace(lacking, llvm_ir=swapped)])
    with pytest.raises(ArtifactError, match=r"its LLVM IR .* is not of program/0"):
        load(tmp_path / "model.tw")


def test_the_first_group_that_runs_is_taken(bundle: Bundle, lacking: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "model.tw"
    write_artifact(path, [lacking, bundle])
    check(load(path))


def test_a_group_for_another_kind_of_device(bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "model.tw"
    program = msgspec.structs.replace(bundle.program, target="cuda:sm_90a")
    write_artifact(path, [Bundle(program, bundle.code, bundle.constants)])
    host = HostDevice(bytes(bundle.code[bundle.program.runtime_object]))
    with pytest.raises(ArtifactError, match="holds code for cuda:sm_90a and none for host"):
        load(path, device=host)


def test_features_of_this_machine() -> None:
    assert required_features.missing_features("") == ()
    assert required_features.missing_features("-avx512f,-no-such-feature") == ()
    assert required_features.missing_features("+no-such-feature,+no-such-feature") == ("no-such-feature",)
    if machine() == "x86_64":
        assert required_features.missing_features("x86-64-v2") == ()


def test_code_for_this_machine_asks_for_nothing_that_a_load_without_llvm_does_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(required_features, "_llvm_features", lambda: pytest.fail("LLVM was asked"))
    every = host_target(Target.parse("host"))
    assert required_features.missing_features(every.features) == ()
    hidden = min(every.required() & cpu_features())
    monkeypatch.setattr(host_cpu, "_IMPLIED_BY", {})
    for module in (host_target_module, required_features):
        monkeypatch.setattr(module, "cpu_features", lambda: cpu_features() - {hidden})
    target = host_target(Target.parse("host"))
    assert hidden not in target.required() and required_features.missing_features(target.features) == ()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_loaded_model_runs_after_fork(saved: Path) -> None:
    fn = load(saved)
    fn(X, threads=2)
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(fn(X, threads=2), 2 * X + WEIGHT[:40]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    check(fn)
