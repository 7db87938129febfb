"""Cache of whole compiles: the artifact of a model by a key over everything that decides it."""

from __future__ import annotations

import warnings

from tilewright.compiler.builder.cache import Cache, CacheWarning
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.program.artifact import Artifact, Bundle, LazyBundle, constant_bytes, write_artifact


class ModelCache:
    """Stores and finds bundles; a damaged entry counts as missing."""

    def __init__(self, cache: Cache | None = None) -> None:
        self.cache = cache or Cache()

    def get(self, key: str) -> Bundle | None:
        found = self.cache.path(key)
        if found is None:
            return None
        try:
            opened = Artifact(found)
            stored = LazyBundle(opened, opened.manifest.groups[0])
            return Bundle(stored.program(), stored.code(), stored.constants(), stored.llvm_ir())
        except (ArtifactError, IndexError):
            return None

    def put(self, key: str, bundle: Bundle) -> Bundle | None:
        """Store a bundle, and give it as it is stored: mapped, not in memory. None where there is no room for it."""
        size = sum(constant_bytes(bundle).values())
        try:
            path = self.cache.put_file(key, size, lambda draft: write_artifact(draft, [bundle], sync=False))
        except ArtifactError as error:
            warnings.warn(f"the compiled model is not cached: {error}", CacheWarning, stacklevel=2)
            return None
        return None if path is None else self.get(key)
