"""What LLVM made is taken from the cache of the tests where text, target and level are the same."""

from __future__ import annotations

from pathlib import Path

import kept_code
import pytest

from tilewright.compiler.builder import build, codegen
from tilewright.compiler.builder.cache import Cache
from tilewright.runtime.errors import BuildError
from tilewright.runtime.target import Target

TEXT = "define i32 @f() {{ ret i32 {} }}"


def test_equal_texts_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, made = Target.parse("host"), []
    kept_code.keep(False)
    plain, ptx = codegen.emit_object, build.to_ptx
    monkeypatch.setattr(kept_code, "_folder", lambda: Cache(tmp_path))
    monkeypatch.setitem(kept_code.PLAIN, "object", lambda *asked: made.append(asked) or plain(*asked))
    kept_code.keep(True)
    try:
        found = [codegen.compile_object(TEXT.format(n), host, level) for n, level in ((1, 0), (1, 0), (2, 0), (1, 3))]
        assert found[0] == found[1] != found[2] and len(made) == 3
        for _ in range(2):
            with pytest.raises(BuildError):
                codegen.compile_object("define nonsense", host)
        assert len(made) == 5 and build.to_ptx is not ptx
    finally:
        kept_code.keep(False)
    assert build.to_ptx is ptx and codegen.compile_object(TEXT.format(1), host, 0) == found[0] and len(made) == 6
