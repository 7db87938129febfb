"""The cache: whole entries or none, bounded, and never in the way."""

from __future__ import annotations

import errno
import os
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

    def fail(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:1])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "write_bytes", fail)
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
