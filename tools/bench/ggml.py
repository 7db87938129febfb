"""llama.cpp's kernels as a peer: products of rows of f32 by weights of type Q4_0, through the C interface of ggml.

The libraries are those that llama.cpp builds: libggml-base.so and libggml-cpu-*.so of one folder. Weights lie in any of the CPU
backend's buffer types: for AMX, repacked, plain.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 32  # values of a scale
_F32, _Q4_0 = 0, 2  # numbers of types
_BLOCK_BYTES = 18  # of Q4_0
_CONTEXT = 1 << 24  # bytes of tensors' descriptions
_POOL_PARAMS = 1 << 10  # bytes, more than ggml_threadpool_params has


class _Params(Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


class Ggml:
    """The CPU backend of libraries in a folder. cpu: of which processor, as in libggml-cpu-icelake.so."""

    def __init__(self, folder: Path, cpu: str, threads: int) -> None:
        self.base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(str(folder / f"libggml-cpu-{cpu}.so" if cpu else folder / "libggml-cpu.so"))
        registry = self._call(self.cpu, "ggml_backend_init", c_void_p)()
        self.device = self._call(self.base, "ggml_backend_reg_dev_get", c_void_p, c_void_p, c_size_t)(registry, 0)
        self.backend = self._call(self.base, "ggml_backend_dev_init", c_void_p, c_void_p, c_char_p)(self.device, None)
        address = self._call(self.base, "ggml_backend_reg_get_proc_address", c_void_p, c_void_p, c_char_p)
        ctypes.CFUNCTYPE(None, c_void_p, c_int)(address(registry, b"ggml_backend_set_n_threads"))(self.backend, threads)
        self.pause = self._pool(registry, address, threads) if threads > 1 else lambda: None
        extra = address(registry, b"ggml_backend_dev_get_extra_bufts")
        self.layouts = list[int]()
        if extra:
            found = ctypes.CFUNCTYPE(POINTER(c_void_p), c_void_p)(extra)(self.device)
            while found[len(self.layouts)]:
                self.layouts.append(found[len(self.layouts)] or 0)

    def _pool(self, registry: int, address: Any, threads: int) -> Callable[[], None]:
        """Threads that stay between graphs; what lets them sleep until the next one."""
        params = (ctypes.c_char * _POOL_PARAMS)()
        self._call(self.base, "ggml_threadpool_params_init", None, c_void_p, c_int)(params, threads)
        pool = ctypes.CFUNCTYPE(c_void_p, c_void_p)(address(registry, b"ggml_threadpool_new"))(params)
        ctypes.CFUNCTYPE(None, c_void_p, c_void_p)(address(registry, b"ggml_backend_cpu_set_threadpool"))(self.backend, pool)
        pause = self._call(self.cpu, "ggml_threadpool_pause", None, c_void_p)
        return lambda: pause(pool)

    @staticmethod
    def _call(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(library, name)
        function.restype, function.argtypes = result, list(arguments)
        return function

    def _context(self) -> int:
        found: int = self._call(self.base, "ggml_init", c_void_p, _Params)(_Params(_CONTEXT, None, True))
        return found

    def _tensor(self, context: int, kind: int, inner: int, outer: int) -> int:
        found: int = self._call(self.base, "ggml_new_tensor_2d", c_void_p, c_void_p, c_int, c_int64, c_int64)(
            context, kind, inner, outer)
        return found

    def _allocate(self, context: int, layout: int) -> None:
        if not self._call(self.base, "ggml_backend_alloc_ctx_tensors_from_buft", c_void_p, c_void_p, c_void_p)(context, layout):
            raise RuntimeError("ggml did not allocate its tensors")

    def name_of(self, layout: int) -> str:
        found: bytes = self._call(self.base, "ggml_backend_buft_name", c_char_p, c_void_p)(layout)
        return found.decode()

    @property
    def plain(self) -> int:
        """The buffer type of any tensor."""
        found: int = self._call(self.base, "ggml_backend_dev_buffer_type", c_void_p, c_void_p)(self.device)
        return found

    def products(self, weights: Sequence[np.ndarray], rows: int, layout: int) -> Callable[[np.ndarray], list[np.ndarray]]:
        """One graph of the products of the same rows by every weight, of which a call gives the first. weights: bytes
        [n, blocks of k]."""
        n, k = len(weights[0]), weights[0].shape[1] // _BLOCK_BYTES * BLOCK
        held, others = self._context(), self._context()
        stored = [self._tensor(held, _Q4_0, k, n) for _ in weights]
        self._allocate(held, layout)
        x = self._tensor(others, _F32, k, rows)
        multiply = self._call(self.base, "ggml_mul_mat", c_void_p, c_void_p, c_void_p, c_void_p)
        made = [multiply(others, w, x) for w in stored]
        graph = self._call(self.base, "ggml_new_graph", c_void_p, c_void_p)(others)
        for y in made:
            self._call(self.base, "ggml_build_forward_expand", None, c_void_p, c_void_p)(graph, y)
        self._allocate(others, self.plain)
        put = self._call(self.base, "ggml_backend_tensor_set", None, c_void_p, c_void_p, c_size_t, c_size_t)
        get = self._call(self.base, "ggml_backend_tensor_get", None, c_void_p, c_void_p, c_size_t, c_size_t)
        run = self._call(self.base, "ggml_backend_graph_compute", c_int, c_void_p, c_void_p)
        for to, weight in zip(stored, weights, strict=True):
            put(to, weight.ctypes.data, 0, weight.nbytes)
        outs = [np.empty((rows, n), np.float32) for _ in weights]

        def call(given: np.ndarray) -> list[np.ndarray]:
            put(x, given.ctypes.data, 0, given.nbytes)
            if run(self.backend, graph):
                raise RuntimeError("ggml did not compute its graph")
            self.pause()
            get(made[0], outs[0].ctypes.data, 0, outs[0].nbytes)
            return outs[:1]

        return call
