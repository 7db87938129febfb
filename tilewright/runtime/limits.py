"""Limits: what tile rules need to know of a CPU or of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

LINE = 64  # bytes of a cache line
WARP = 32  # threads that a GPU issues together
MULTIPROCESSOR_THREADS = 2048  # that a multiprocessor holds at most
BYTE_FLOATS = 89  # the first version whose mma.sync multiplies 8-bit floats


@dataclass(frozen=True)
class HostLimits:
    """Vector width in bytes, vector registers, cache sizes in bytes (per core, l3 shared), cores.

    threads: most of a call, 0 for as many as cores. Only what does not change the bits of results may depend on it.
    bf16_pairs: does one instruction add two products of bf16 to each f32 (vdpbf16ps of AVX-512 BF16)?
    byte_products: products of bytes that an instruction adds to each i32: four, unsigned by signed (vpdpbusd of AVX-512 VNNI);
    two, widened to 16 bits (vpmaddwd of AVX2); 1 where there is none.
    multiply_adds: vectors of f32 that it multiplies and adds a cycle.
    permutes: does one instruction take the words of a register in any order (vpermd of AVX2 and AVX-512)?
    byte_permutes: does one take 64 bytes in any order (vpermb of AVX-512 VBMI)?
    tiles: does one multiply tiles of bytes of 16 rows by 16 columns (tdpbusd of AMX)? bf16_tiles: of bf16 (tdpbf16ps)?
    calibrated: thresholds of the untuned choices as this machine was measured to want them, "family.name" -> value.
    """

    vector_bytes: int = 32
    vector_registers: int = 16
    l1: int = 32 * 1024
    l2: int = 512 * 1024
    l3: int = 16 * 1024 * 1024
    cores: int = 1
    bf16_pairs: bool = False
    threads: int = 0
    permutes: bool = False
    byte_permutes: bool = False
    byte_products: int = 1
    tiles: bool = False
    bf16_tiles: bool = False
    multiply_adds: int = 2
    calibrated: tuple[tuple[str, int], ...] = ()

    def lanes(self, element_bytes: int) -> int:
        """Elements per vector register."""
        return self.vector_bytes // element_bytes


@dataclass(frozen=True)
class GpuLimits:
    """A GPU architecture: shared bytes and threads of a block, registers of a multiprocessor and of a thread, multiprocessors,
    bytes of the L2 cache."""

    arch: str
    shared_bytes: int
    threads: int = 1024
    registers: int = 65536
    thread_registers: int = 255
    multiprocessors: int = 108
    l2: int = 40 << 20

    @property
    def version(self) -> int:
        """90 of sm_90a."""
        return int("".join(c for c in self.arch if c.isdigit()) or 0)

    def registers_each(self, threads: int, blocks: int = 1) -> int:
        """Most registers of a thread where so many blocks of so many threads share a multiprocessor; 0 blocks count as 1."""
        return min(self.thread_registers, self.registers // (threads * max(1, blocks)))

    @staticmethod
    def of(arch: str) -> GpuLimits:
        """What NVIDIA's programming guide (table of technical specifications) says of a compute capability; L2 caches of an A100
        and an H100, by NVIDIA's data sheets."""
        number = GpuLimits(arch, 0).version
        shared = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}.get(number, 99)
        return GpuLimits(arch, shared * 1024, multiprocessors=132 if number >= 90 else 108, l2=(50 if number >= 90 else 40) << 20)


Limits = HostLimits | GpuLimits
