"""The cache: whole entries or none, bounded, and never in the way."""

from __future__ import annotations

import errno
import os
import random
import re
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tilewright.compiler.builder.cache import Cache, CacheWarning, cache_key
from tilewright.runtime.errors import TilewrightError

KEYS = [cache_key("entry", str(i)) for i in range(40)]


def test_round_trip(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1 << 20)
    assert cache.get(KEYS[0]) is None
    place = cache.put(KEYS[0], b"code")
    assert cache.path(KEYS[0]) == place and cache.get(KEYS[0]) == b"code"
    cache.remove(KEYS[0])
    assert cache.get(KEYS[0]) is None


def test_keys_keep_parts_apart() -> None:
    assert len({cache_key("ab", "c"), cache_key("a", "bc"), cache_key("abc"), cache_key("abc", "")}) == 4


def test_a_key_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(TilewrightError, match="hexadecimal digest"):
        Cache(tmp_path, 1 << 20).put("../../escape", b"")


def test_the_knobs_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "0")
    cache = Cache()
    assert cache.folder == tmp_path
    assert cache.put(KEYS[0], b"code") is None and cache.get(KEYS[0]) is None
    assert not list(tmp_path.iterdir())


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 10_000)
    for i, key in enumerate(KEYS[:9]):
        place = cache.put(key, bytes(1000))
        assert place is not None
        os.utime(place, (i + 1, i + 1))
    assert cache.get(KEYS[0]) is not None  # used now
    for key in KEYS[9:14]:
        cache.put(key, bytes(1000))
    kept = [i for i, key in enumerate(KEYS[:14]) if cache.path(key)]
    assert 0 in kept and 1 not in kept and 13 in kept
    assert sum(f.stat().st_size for f in tmp_path.glob("??/*")) <= 10_000


def test_too_large_for_the_limit(tmp_path: Path) -> None:
    assert Cache(tmp_path, 100).put(KEYS[0], bytes(101)) is None


def test_leftovers_of_dead_writers_go(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1 << 20)
    place = cache.put(KEYS[0], b"code")
    assert place is not None
    old, new = place.with_name(".old.1.x"), place.with_name(".new.1.x")
    for draft in (old, new):
        draft.write_bytes(b"half")
    os.utime(old, (1, 1))
    cache.prune()
    assert not old.exists() and new.exists() and place.exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_folder_that_takes_nothing_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    cache = Cache(tmp_path, 1 << 20)
    cache.put(KEYS[0], b"before")

    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.warns(CacheWarning, match="TILEWRIGHT_CACHE_DIR") as caught:
        assert cache.put(KEYS[1], b"code") is None
        assert cache.put(KEYS[2], b"code") is None
    assert len(caught) == 1
    assert cache.get(KEYS[1]) is None and cache.get(KEYS[0]) == b"before"
    assert [f.name for f in tmp_path.glob("??/*")] == [KEYS[0][2:]]  # no half-written file


def test_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "cache", 1 << 20)
    with pytest.warns(CacheWarning):
        assert cache.put(KEYS[0], b"code") is None
    assert cache.get(KEYS[0]) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache_still_serves(tmp_path: Path) -> None:
    Cache(tmp_path, 1 << 20).put(KEYS[0], b"code")
    for folder in (tmp_path / KEYS[0][:2], tmp_path):
        folder.chmod(0o555)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Cache(tmp_path, 1 << 20).get(KEYS[0]) == b"code"


WRITER = """
import sys
from pathlib import Path
from tilewright.compiler.builder.cache import Cache, cache_key
cache = Cache(Path(sys.argv[1]), 300_000)
for i in range(200):
    key = cache_key("entry", str(i % 20))
    data = (str(i % 20) * 20000)[:20000].encode()
    cache.put(key, data)
    found = cache.get(key)
    assert found is None or found == data, "a torn entry"
"""


def test_writers_at_once(tmp_path: Path) -> None:
    home = Path(__file__).parents[2]
    writers = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", WRITER, str(tmp_path)], cwd=home) for _ in range(3)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert not list(tmp_path.glob("??/.*"))


def test_no_damaged_entry_is_given(tmp_path: Path) -> None:
    """200 single bits, anywhere: none is given, each is made anew."""
    rng, data = random.Random(0), random.Random(1).randbytes(3000)
    cache = Cache(tmp_path, 1 << 20)
    for _ in range(200):
        place = cache.put(KEYS[0], data)
        assert place is not None
        found = bytearray(place.read_bytes())
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
        place.write_bytes(found)
        assert cache.get(KEYS[0]) is None and not place.exists()
    for cut in (0, 7, 39, 40, 500):
        place = cache.put(KEYS[0], data)
        assert place is not None
        place.write_bytes(place.read_bytes()[:cut])
        assert cache.get(KEYS[0]) is None


def test_an_entry_is_not_taken_for_another(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1 << 20)
    one, other = cache.put(KEYS[0], b"one"), cache.put(KEYS[1], b"other")
    assert one is not None and other is not None
    other.write_bytes(one.read_bytes())
    assert cache.get(KEYS[1]) is None and cache.get(KEYS[0]) == b"one"


def test_folders_and_entries_are_their_owner_s(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        place = Cache(tmp_path / "a" / "cache", 1 << 20).put(KEYS[0], b"code")
    finally:
        os.umask(before)
    assert place is not None
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "a" / "cache", place.parent, place)]
    assert modes == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("part", ["folder", "subfolder", "entry"])
@pytest.mark.parametrize("mode", [0o20, 0o2])
def test_what_others_may_write_is_refused_with_one_line(tmp_path: Path, part: str, mode: int) -> None:
    folder = tmp_path / "cache"
    place = Cache(folder, 1 << 20).put(KEYS[0], b"code")
    assert place is not None
    odd = {"folder": folder, "subfolder": place.parent, "entry": place}[part]
    odd.chmod(odd.stat().st_mode | mode)
    cache = Cache(folder, 1 << 20)
    says = f"{re.escape(str(odd))} is not used: user .* owns it and its mode is .*; wanted user"
    with pytest.warns(CacheWarning, match=says) as told:
        assert cache.get(KEYS[0]) is None and cache.path(KEYS[0]) is None
        made = cache.put(KEYS[0], b"anew")
    assert len(told) == 1
    if part == "entry":  # in a folder of our own it is replaced
        assert made == place and cache.get(KEYS[0]) == b"anew"
    else:
        assert made is None and odd.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("part", ["folder", "subfolder", "entry"])
def test_what_another_user_owns_is_refused(tmp_path: Path, part: str) -> None:
    folder = tmp_path / "cache"
    place = Cache(folder, 1 << 20).put(KEYS[0], b"code")
    assert place is not None
    odd = {"folder": folder, "subfolder": place.parent, "entry": place}[part]
    os.chown(odd, 12345, -1)
    with pytest.warns(CacheWarning, match="user 12345 owns it"):
        assert Cache(folder, 1 << 20).get(KEYS[0]) is None


def test_an_entry_that_is_no_file_is_none(tmp_path: Path) -> None:
    place = Cache(tmp_path, 1 << 20).put(KEYS[0], b"code")
    assert place is not None
    place.unlink()
    os.mkfifo(place)
    assert Cache(tmp_path, 1 << 20).get(KEYS[0]) is None
    assert Cache(tmp_path, 1 << 20).put(KEYS[0], b"anew") == place
    assert Cache(tmp_path, 1 << 20).get(KEYS[0]) == b"anew"


def test_entries_are_on_the_disk_before_they_have_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        seen.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "entry")
        sync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        seen.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    Cache(tmp_path, 1 << 20).put(KEYS[0], b"code")
    assert seen == ["entry", "rename", "folder"]
