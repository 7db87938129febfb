"""Files of saved models as others change them meanwhile; what `load` and `save` do with paths that are no regular files."""

from __future__ import annotations

import gc
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.runtime.errors import ArtifactError, OptionError
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.target import Target

WIDTH = 96
W = np.random.default_rng(0).standard_normal((64, WIDTH)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
HOME = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fn() -> CompiledFunction:
    graph = ops.Graph()
    graph.output(ops.matmul(graph.input("x", ["M", 64]), graph.input("w", [64, WIDTH])))
    options = tw.CompileOptions(builder=LocalBuilder(Target.parse("host")))
    return tw.compile(graph, {"M": (1, 8)}, constants={"w": W}, options=options)


@pytest.fixture
def saved(fn: CompiledFunction, tmp_path: Path) -> Path:
    fn.save(tmp_path / "model.tw")
    return tmp_path / "model.tw"


def right(fn: CompiledFunction) -> None:
    for _ in range(2):  # the first call reads the constants, the second one is native
        np.testing.assert_allclose(fn(X), X @ W, rtol=1e-4, atol=1e-4)


CHANGES = """
import itertools, sys, numpy as np, tilewright as tw
path = sys.argv[1]
saved, x = open(path, "rb").read(), np.ones((3, 64), np.float32)
for verify, when, change in itertools.product(("lazy", "full", "none"), ("called", "loaded"), ("short", "zeros")):
    with open(path, "wb") as file:
        file.write(saved)
    fn = tw.load(path, verify=verify)
    if when == "called":
        fn(x)
    with open(path, "r+b") as file:
        file.truncate(1000) if change == "short" else file.write(bytes(len(saved)))
    try:
        fn(x)
    except tw.errors.ArtifactError as error:
        print(verify, when, change, error)
    else:
        print(verify, when, change, "right")
"""


def test_a_file_that_is_changed_while_it_is_loaded(saved: Path) -> None:
    """Cut short or overwritten in its place: constants that were read stay, others are an error. Never a signal."""
    done = subprocess.run([sys.executable, "-c", CHANGES, str(saved)], cwd=HOME, capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
    lines = done.stdout.splitlines()
    assert len(lines) == 12
    for line in lines:
        verify, when, _, words = line.split(" ", 3)
        if when == "called" or verify == "full":
            assert words == "right", line
        else:
            assert "was changed while it was loaded" in words or "was written to while it was loaded" in words, line


def test_a_file_that_is_replaced_or_removed_does_not_matter(saved: Path, fn: CompiledFunction) -> None:
    loaded = tw.load(saved)
    fn.save(saved)
    right(loaded)
    again = tw.load(saved)
    saved.unlink()
    right(again)
    again.save(saved)
    right(tw.load(saved, verify="full"))


@pytest.mark.parametrize("verify", ["lazy", "full", "none"])
def test_every_way_of_checking_gives_the_same(saved: Path, verify: str) -> None:
    right(tw.load(saved, verify=verify))  # type: ignore[arg-type]
    right(tw.load(saved, verify=verify, shared=True))  # type: ignore[arg-type]


def test_constants_are_read_at_the_first_call_and_calls_are_native_then(saved: Path) -> None:
    loaded = tw.load(saved)
    caller = loaded._caller
    assert caller.native is None
    right(loaded)
    assert caller.native is not None
    assert tw.load(saved, verify="full")._caller.native is not None


def test_threads_that_call_first_at_once(saved: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    loaded = tw.load(saved)
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: loaded(X), range(32)):
            np.testing.assert_allclose(got, X @ W, rtol=1e-4, atol=1e-4)


def test_no_descriptor_is_left(saved: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    gc.collect()
    before = count()
    for _ in range(5):
        right(tw.load(saved))
        damaged = saved.with_name("damaged.tw")
        damaged.write_bytes(saved.read_bytes()[:-1])
        with pytest.raises(ArtifactError):
            tw.load(damaged)
    assert count() <= before  # what other tests left may be collected meanwhile


def odd_paths(folder: Path) -> dict[str, Path | str]:
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "socket"))
    return {"a named pipe": folder / "pipe", "a socket": folder / "socket", "a device": "/dev/zero", "a folder": folder}


def test_what_is_no_file_is_not_waited_for(tmp_path: Path, fn: CompiledFunction) -> None:
    signal.alarm(60)
    try:
        for kind, path in odd_paths(tmp_path).items():
            with pytest.raises(ArtifactError, match=f"cannot read .*: it is {kind}; wanted a file that save"):
                tw.load(path)
            with pytest.raises(ArtifactError, match=f"cannot write .*: it is {kind}; give a file name"):
                fn.save(path)
    finally:
        signal.alarm(0)
    for path in ("a\0b.tw", tmp_path / "a\0b.tw"):
        with pytest.raises(ArtifactError, match="null byte"):
            tw.load(path)
        with pytest.raises(ArtifactError, match="null byte"):
            fn.save(path)
    with pytest.raises(ArtifactError, match="File name too long"):
        tw.load(tmp_path / ("x" * 300))


def test_save_keeps_mode_and_link(tmp_path: Path, fn: CompiledFunction) -> None:
    target, link = tmp_path / "deep" / "model.tw", tmp_path / "link.tw"
    target.parent.mkdir()
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    fn.save(link)
    assert link.is_symlink() and stat.S_IMODE(target.stat().st_mode) == 0o640
    right(tw.load(target))
    target.unlink()
    fn.save(link)  # to nothing: the file is made where it points
    assert link.is_symlink() and target.is_file()
    assert [p.name for p in target.parent.iterdir()] == ["model.tw"]


KILLED = """
import os, signal, sys
from tilewright.runtime.program.replace_file import replaced
from pathlib import Path
with replaced(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_what_killed_writers_left_is_removed_and_what_others_write_is_not(tmp_path: Path, fn: CompiledFunction) -> None:
    target = tmp_path / "model[1].tw"
    command = [sys.executable, "-c", KILLED, str(target)]
    assert subprocess.run([*command, "killed"], cwd=HOME).returncode == -signal.SIGKILL
    (tmp_path / ".model[1].tw.notes.tmp").write_bytes(b"of somebody else")
    (left,) = tmp_path.glob(".*.*.*.*.tmp")
    with subprocess.Popen([*command, "waits"], cwd=HOME, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin is not None and writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        fn.save(target)
        others = {p.name for p in tmp_path.iterdir()} - {target.name, ".model[1].tw.notes.tmp"}
        assert left.name not in others and len(others) == 1
        writer.stdin.close()
    assert target.read_bytes() == b"half"


def test_options_that_make_no_sense(saved: Path) -> None:
    with pytest.raises(OptionError, match="key= with verify='none'"):
        tw.load(saved, verify="none", key="key.pem")
    with pytest.raises(OptionError, match="key= with shared=True"):
        tw.load(saved, shared=True, key="key.pem")
