"""AttentionTiles: what of a `wgmma_attention` is known before its launch: tiles of the operands, and the two products of them."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.families.gpu.gpu_attention_plan import AttentionPlan
from tilewright.passes.families.gpu.simt_plan import SimtPlan
from tilewright.passes.families.gpu.wgmma_code import WgmmaCode
from tilewright.passes.families.gpu.wgmma_operand import TmaOperand
from tilewright.passes.spaces.gpu.wgmma import STEP
from tilewright.passes.spaces.gpu.wgmma_attention import BLOCK, SIZE, WgmmaAttentionConfig, blocks, fragments

PER_STEP = STEP // SIZE  # positions along k of an instruction


@dataclass(frozen=True)
class AttentionTiles:
    """Of queries, keys and values, and the products of them."""

    query: TmaOperand
    key: TmaOperand
    value: TmaOperand
    scores: WgmmaCode
    mixing: WgmmaCode

    @staticmethod
    def of(kernel: GpuKernel, plan: AttentionPlan, config: WgmmaAttentionConfig) -> AttentionTiles:
        view = plan.view
        depth = view.scores.size(view.scores.k).constant or 1
        factors = SimtPlan(view.scores, view.query, 1 - view.query, view.rows, (view.key,), (), False)
        query, key = (TmaOperand(kernel, factors, which, extent, blocks(depth))
                      for which, extent in ((view.query, config.bm), (1 - view.query, config.bn)))
        value = TmaOperand(kernel, plan.mixing, 1 - view.weights, blocks(view.columns) * BLOCK, config.bn // BLOCK, clears=True)
        if query.size != SIZE:
            raise ValueError(f"{view.scores.op.name} at {view.scores.op.location}: operands have elements of "
                             f"{query.size} bytes, wanted {SIZE}")
        turned = [not t.along_k for t in (query, key, value)]
        kinds, mixed = plan.product.kinds, plan.mixing_product.kinds
        scores = WgmmaCode(config.bn, PER_STEP, (kinds[view.query], kinds[1 - view.query]), (turned[0], turned[1]))
        mixing = WgmmaCode(fragments(view.columns), PER_STEP, (mixed[view.weights], mixed[1 - view.weights]), (False, turned[2]))
        return AttentionTiles(query, key, value, scores, mixing)
