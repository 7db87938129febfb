"""Family `gemv`: contractions of few rows, whose weights go once from memory into registers.

A warp takes pieces of k in turn with the others of its block, four lanes along k and eight along the columns, each with 16 bytes
along k of some columns. All loads of a step are under way before it multiplies, or while the step before does; blocks of few
threads share a multiprocessor, so that others load while some multiply. Sums of lanes, warps and the blocks of a cluster are
added up in a fixed order at the end. Any order of k serves a product of tensor cores as long as both factors have it: weights
need no shared memory on their way.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.passes.codegen.emit import byte_width
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.codegen.gpu_space import Point
from tilewright.passes.codegen.kernel_frame import KernelFrame
from tilewright.passes.codegen.tiler import Tiler
from tilewright.passes.families.gpu.gemv_block import Factor, GemvBlock
from tilewright.passes.families.gpu.gemv_product import FusedProduct, MatrixProduct
from tilewright.passes.families.gpu.gpu_pointwise import tile_elements
from tilewright.passes.families.gpu.mma_product import TensorProduct
from tilewright.passes.families.gpu.simt_plan import SimtPlan
from tilewright.passes.families.gpu.simt_store import SplitSum
from tilewright.passes.families.gpu.tile_grid import tile_contraction
from tilewright.passes.mlir import ir
from tilewright.passes.spaces.gpu.gemv import WIDEST, GemvConfig

_FINISH = 256  # threads of the second launch


def emit(kernel: GpuKernel, config: GemvConfig) -> None:
    """The whole kernel. ValueError when the region is no contraction that this family computes."""
    plan = SimtPlan.of(kernel)
    launch(kernel, plan, config, lambda split: _PlainBlock(kernel, plan, config, split))


def launch(kernel: GpuKernel, plan: SimtPlan, config: GemvConfig,
           block: Callable[[SplitSum | None], GemvBlock]) -> None:
    """Blocks, which `block` makes, and the second launch where that sums parts of k."""
    split = SplitSum(kernel, plan, config.split_k) if config.split_k > 1 else None
    if split is not None:
        kernel.use_workspace(split.bytes())
    kernel.launch(config.threads, lambda: block(split).emit(),
                  min_blocks_per_sm=config.min_blocks_per_sm, cluster=config.cluster_k)
    if split is not None:
        kernel.launch(_FINISH, lambda: split.finish(1), "_sum")


def tile(frame: KernelFrame, config: GemvConfig, tiler: Tiler) -> None:
    """Units of some rows by bn columns."""
    tile_contraction(SimtPlan.of(frame), config.rows, config.bn, tiler)
    if config.split_k > 1:
        tile_elements(frame, tiler, 1, _FINISH)


class _PlainBlock(GemvBlock):
    """Weights as they are multiplied."""

    def __init__(self, kernel: GpuKernel, plan: SimtPlan, config: GemvConfig, split: SplitSum | None) -> None:
        super().__init__(kernel, plan, config, split)
        elements = [ir.RankedTensorType(plan.view.operand(side).type).element_type for side in range(2)]
        self.positions = WIDEST // min(map(byte_width, elements))
        sides = (plan.row_side, plan.column_side)
        rows, columns = config.rows_each, config.columns
        self.product = (MatrixProduct(self.code, sides, rows, columns, self.positions, TensorProduct.of(plan.view))
                        if config.tensor else FusedProduct(self.code, sides, rows, columns, self.positions))

    def weights(self, batch: Point) -> Factor:
        return self.factor(self.plan.column_side, batch, self.config.columns)
