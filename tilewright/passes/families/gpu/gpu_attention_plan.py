"""Plan of a GPU attention: the two contractions on tensor cores, where the mixed values land, which keys are hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.passes.analysis.attention import Attention, AttentionError
from tilewright.passes.analysis.placement import place
from tilewright.passes.codegen.attention_mask import AttentionMask
from tilewright.passes.codegen.emit import byte_width, vector_type
from tilewright.passes.codegen.gpu_kernel import GpuKernel
from tilewright.passes.families.gpu.mma_product import TensorProduct
from tilewright.passes.families.gpu.simt_plan import SimtPlan
from tilewright.passes.mlir import arith, ir, llvm, nvvm, vector
from tilewright.passes.spaces.gpu.gpu_attention import LONGEST_QUERY, LONGEST_VALUE
from tilewright.passes.spaces.gpu.wgmma_attention import row_loop


@dataclass(frozen=True)
class MixingProduct(TensorProduct):
    """The product of exponentials and values."""

    def factors(self, weights: Sequence[ir.Value]) -> list[ir.Value]:
        """The left operand of an instruction, from the f32 that lie where the instructions for the scores put them.

        Of 16-bit elements, 16 keys: two blocks of 8 keys of two neighbours each. Of tf32, 8 keys: the keys of a lane are
        neighbours, so that the values have to come in pairs of keys too.
        """
        a, b, c, d, *more = weights
        if byte_width(self.element) == 4:
            return [nvvm.convert_float_to_tf32(x, rnd=ir.Attribute.parse("#nvvm.fp_rnd_mode<rna>"),
                                               results=[ir.IntegerType.get_signless(32)]) for x in (a, c, b, d)]
        e, f, g, h = more
        return [self._pair(x, y) for x, y in ((a, b), (c, d), (e, f), (g, h))]

    def _pair(self, x: ir.Value, y: ir.Value) -> ir.Value:
        both = vector.from_elements(vector_type(ir.F32Type.get(), 2), [x, y])
        narrow = arith.truncf(vector_type(self.element, 2), both)
        return llvm.BitcastOp(ir.IntegerType.get_signless(32), narrow).result


@dataclass(frozen=True)
class AttentionPlan:
    """product, mixing_product: of scores and of mixed values. mixing: rows and columns of the second contraction, where its
    results land."""

    view: Attention
    hidden: AttentionMask
    product: TensorProduct
    mixing_product: MixingProduct
    mixing: SimtPlan

    @staticmethod
    def of(kernel: GpuKernel, tf32: bool) -> AttentionPlan:
        """ValueError when the region is no attention on tensor cores."""
        ops = kernel.ops()
        view = Attention.of(ops, kernel.shapes)
        product, mixing_product = (TensorProduct.of(v, tf32) for v in (view.scores, view.mixed))
        depth = view.scores.size(view.scores.k).constant
        if depth is None or depth > LONGEST_QUERY or view.columns > LONGEST_VALUE:
            sizes = f"{view.scores.size(view.scores.k)} and {view.columns}"
            raise AttentionError("head-size", f"{sizes}, wanted at most {LONGEST_QUERY} and {LONGEST_VALUE}")
        if str(product.sum) != "f32" or byte_width(product.element) not in (2, 4) or product.element != mixing_product.element:
            raise AttentionError("tensor-cores", f"scores of {product.element}, weights of {mixing_product.element}")
        after = ops[ops.index(view.mixed.op) + 1 :]
        places = place(kernel.shapes, view.mixed.op.results[0], after, kernel.results)
        rows = tuple(view.loops.index(d) for d in view.rows)
        mixing = SimtPlan(view.mixed, view.weights, 1 - view.weights, rows, (view.column,), tuple(places), False)
        hidden = AttentionMask.of(view, kernel.shapes)
        mixed = MixingProduct(mixing_product.kinds, mixing_product.element, mixing_product.sum)
        return AttentionPlan(view, hidden, product, mixed, mixing)

    def with_one_row_loop(self) -> AttentionPlan:
        """The same where all loops of rows but one are shared ones."""
        view = with_one_row_loop(self.view)
        return replace(self, view=view, mixing=replace(self.mixing, rows=tuple(view.loops.index(d) for d in view.rows)))


def with_one_row_loop(view: Attention) -> Attention:
    """All loops of rows but one as shared ones: heads that share their keys one by one."""
    rows = tuple(view.rows[row_loop([view.scores.extents[d] for d in view.rows])] for _ in view.rows[:1])
    return replace(view, rows=rows, shared=tuple(sorted({*view.shared, *view.rows} - {*rows})))
