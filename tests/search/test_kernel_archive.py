from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gpu_surfaces import simt_task
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.passes.spaces.family_registry import config_text
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.program.kernel import MicroKernel
from tilewright.runtime.tensor import DType
from tilewright.search.archive.archive_tuning import ArchiveBuilder, task_of
from tilewright.search.archive.kernel_archive import ArchiveOperator, Contents, KernelArchive, write_archive
from tilewright.search.archive.stored_case import StoredCase
from tilewright.search.database.workload_form import WorkloadForm
from tilewright.search.runner.verification import Case, seeded

TASK = simt_task()
CODES = [b"// PTX\n.visible .entry one" * 50, b"// PTX\n.visible .entry two" * 50]


def contents() -> Contents:
    digests = [hashlib.sha256(c).hexdigest() for c in CODES]
    w = TASK.workload
    kernels = [MicroKernel("k", w.key, "simt", config_text(c), (), ("1", "1", "1"), object=digests[i % 2], registers=40 + i)
               for i, c in enumerate(TASK.configs[:5])]
    points = TASK.points
    operator = ArchiveOperator(WorkloadForm.of(w), ("simt",), tuple(kernels), points.shapes, points.weights, TASK.held_out, 1.0,
                               failed={config_text(TASK.configs[5]): "out of registers"})
    case = Case((("d0", 3),), 7, ((np.arange(12.0) / 16).reshape(3, 4),))
    return Contents("cuda:sm_90a", [operator], dict(zip(digests, CODES, strict=True)), {w.key: [case]}, {"compiler": "abc"}, 3)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "kernels.tw"
    write_archive(path, contents())
    return path


def read_all(archive: KernelArchive) -> tuple[object, ...]:
    operator = next(iter(archive))
    cases = [(c.shape, c.seed, [o.tolist() for o in c.outputs]) for c in archive.cases(operator)]
    return archive.manifest, [archive.code(k) for k in operator.kernels], cases


def test_what_was_written_is_read(written: Path) -> None:
    archive, wanted = KernelArchive(written), contents()
    _, codes, cases = read_all(archive)
    assert archive.manifest.operators == tuple(wanted.operators) and archive.manifest.seed == 3
    assert codes == [CODES[i % 2] for i in range(5)]
    (case,) = wanted.cases[TASK.workload.key]
    assert cases == [(case.shape, 7, [case.outputs[0].tolist()])]
    task = task_of(next(iter(archive)), TASK.limits)
    assert task.workload == TASK.workload and task.points == TASK.points and task.configs == TASK.configs[:5]


def test_equal_images_are_stored_once_and_compressed(written: Path) -> None:
    assert len(KernelArchive(written).manifest.images) == 2
    assert KernelArchive(written).manifest.sections["images"].size < len(CODES[0]) / 4


def test_a_builder_looks_kernels_up_and_says_what_is_missing(written: Path) -> None:
    builder = ArchiveBuilder(KernelArchive(written))
    first, bad, other = builder.build([(TASK.workload, TASK.configs[i]) for i in (0, 5, 6)])
    assert first.kernel is not None and first.code == CODES[0]
    assert (bad.kernel, bad.error) == (None, "out of registers")
    assert other.kernel is None and "is not in" in other.error


def test_every_truncation_is_an_error(written: Path, tmp_path: Path) -> None:
    data = written.read_bytes()
    for size in [*range(80), len(data) // 2, len(data) - 1]:
        (tmp_path / "cut.tw").write_bytes(data[:size])
        with pytest.raises(ArtifactError, match=r"truncated|no archive"):
            KernelArchive(tmp_path / "cut.tw")
    (tmp_path / "long.tw").write_bytes(data + b"x")
    with pytest.raises(ArtifactError, match="damaged"):
        KernelArchive(tmp_path / "long.tw")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_changed_byte_goes_unseen(written: Path, data: st.DataObject) -> None:
    original = written.read_bytes()
    place = data.draw(st.integers(0, len(original) - 1))
    changed = bytearray(original)
    changed[place] ^= data.draw(st.integers(1, 255))
    path = written.with_name("changed.tw")
    path.write_bytes(changed)
    with pytest.raises(ArtifactError):
        read_all(KernelArchive(path))


def test_a_model_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "model.tw").write_bytes(b"\x89TWMODL\n" + bytes(100))
    with pytest.raises(ArtifactError, match="build-kernels"):
        KernelArchive(tmp_path / "model.tw")
    with pytest.raises(ArtifactError, match="cannot read"):
        KernelArchive(tmp_path / "none.tw")
    with pytest.raises(ArtifactError, match="cannot write"):
        write_archive(tmp_path / "no" / "where.tw", contents())


def test_outputs_are_stored_as_exactly_as_results_are() -> None:
    w = TASK.workload
    case = Case((("d0", 3),), 7, (np.random.default_rng(0).standard_normal((3, 256)),))
    stored = StoredCase.of(case, w)
    assert stored.encodings == ("f32",) and len(stored.outputs[0][1]) == 3 * 256 * 4
    np.testing.assert_array_equal(stored.case(w).outputs[0], case.outputs[0].astype(np.float32))
    x = w.inputs[0]
    cast = replace(w, inputs=(x,), outputs=(replace(x, dtype=DType.F16),))
    (values,) = seeded(cast, case.shape, 7)
    for outputs in (values.astype(np.float64), values.astype(np.float16).astype(np.float64)):
        copied = StoredCase.of(Case(case.shape, 7, (outputs,)), cast)
        assert copied.encodings == ("input",) and copied.outputs[0][1] == b""
        np.testing.assert_array_equal(copied.case(cast).outputs[0], values.astype(np.float16).astype(np.float64))
    other = StoredCase.of(Case(case.shape, 7, (values.astype(np.float64) * 2,)), cast)
    assert other.encodings == ("f32",)
    wide = StoredCase(case.shape, 7, ((case.outputs[0].shape, case.outputs[0].tobytes()),))  # as of older archives
    np.testing.assert_array_equal(wide.case(w).outputs[0], case.outputs[0])
    with pytest.raises(ArtifactError, match="damaged"):
        StoredCase(case.shape, 7, (((3, 256), b"x"),), ("f32",)).case(w)
