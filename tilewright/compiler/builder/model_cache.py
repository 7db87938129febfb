"""Cache of whole compiles: the artifact of a model by a key over everything that decides it."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

from tilewright.compiler.builder.cache import Cache, CacheWarning
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.program.artifact import Artifact, Bundle, write_artifact


class ModelCache:
    """Stores and finds bundles; a damaged entry counts as missing."""

    def __init__(self, cache: Cache | None = None) -> None:
        self.cache = cache or Cache()

    def get(self, key: str) -> Bundle | None:
        found = self.cache.path(key)
        if found is None:
            return None
        try:
            stored = next(Artifact(found).bundles("host"))
            return Bundle(stored.program(), stored.code(), stored.constants(), stored.llvm_ir())
        except (ArtifactError, StopIteration):
            return None

    def put(self, key: str, bundle: Bundle) -> None:
        """Store a bundle; one warning and no more when there is no room for it."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.tw"
                write_artifact(path, [bundle])
                data = path.read_bytes()
        except (ArtifactError, OSError) as error:
            warnings.warn(f"the compiled model is not cached: {error}", CacheWarning, stacklevel=2)
            return
        self.cache.put(key, data)
