"""Cache of whole compiles: the artifact of a model by a key over everything that decides it."""

from __future__ import annotations

import warnings

from tilewright.compiler.builder.cache import Cache, CacheWarning
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.log import LOG
from tilewright.runtime.program.artifact import Artifact, Bundle, LazyBundle, constant_bytes
from tilewright.runtime.program.artifact_writer import write_bundles


class ModelCache:
    """Stores and finds bundles; a damaged entry counts as missing and is removed."""

    def __init__(self, cache: Cache | None = None) -> None:
        self.cache = cache or Cache()

    def get(self, key: str) -> Bundle | None:
        """All of it is held against its hashes, constants too, while it can still be made anew."""
        found = self._opened(key)
        if found is None:
            return None
        try:
            constants = found.constants()
            constants.read_all()
            found.artifact.verify_all(besides=set(found.group.constants.values()))
            return Bundle(found.checked(), found.code(), constants, found.llvm_ir())
        except ArtifactError as error:
            self._remove(key, error)
            return None

    def put(self, key: str, bundle: Bundle) -> Bundle | None:
        """Store a bundle, and give it as it is stored, its constants to be read at the first call. None where it has no room."""
        size = sum(constant_bytes(bundle).values())
        try:
            path = self.cache.put_file(key, size, lambda file: write_bundles(file, [bundle], label=key))
            found = None if path is None else self._opened(key)
            return None if found is None else found.load()
        except ArtifactError as error:
            warnings.warn(f"the compiled model is not cached: {error}", CacheWarning, stacklevel=2)
            return None

    def _opened(self, key: str) -> LazyBundle | None:
        path = self.cache.path(key)
        if path is None:
            return None
        try:
            opened = Artifact(path)
            if opened.manifest.label != key or len(opened.manifest.groups) != 1:
                raise ArtifactError(f"{path} is damaged: it is the entry of another model")
            return LazyBundle(opened, opened.manifest.groups[0])
        except ArtifactError as error:
            self._remove(key, error)
            return None

    def _remove(self, key: str, error: ArtifactError) -> None:
        LOG.warning("a cached model is compiled anew: %s", error)
        self.cache.remove(key)
