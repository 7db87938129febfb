// RUN: tilewright opt %s --pass "fuse,outline" | filecheck %s

#image = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1 * 2 + d4, d2 * 2 + d5, d6)>
#filter = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d4, d5, d6, d3)>
#result = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1, d2, d3)>

// What a window passes over keeps the zeros of its pad, through a cast; a pad with ones has none, nor has the filter.
// CHECK: func.func private @contraction_1(%{{[^{]+}}{tw.dims = ["d0", 9, 10, 16], tw.unit = 3 : i64}, %{{[^{]+}}{tw.dims = [3, 3, 16, 32], tw.unit = 3 : i64}
// CHECK: func.func private @contraction(%{{[^{]+}}{tw.dims = ["d0", 9, 10, 16], tw.unit = 3 : i64, tw.zeros = [0, 0, 1, 0, 1, 1, 0, 0]}, %
// CHECK-SAME: tensor<3x3x16x32xf32> {tw.dims = [3, 3, 16, 32], tw.unit = 3 : i64}
func.func @main(%x: tensor<?x8x8x16xf32> {tw.dims = ["B", 8, 8, 16]}, %w: tensor<3x3x16x32xf32> {tw.dims = [3, 3, 16, 32]})
    -> (tensor<?x4x4x32xf32>, tensor<?x4x4x32xf32>) {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %b = tensor.dim %x, %c0 : tensor<?x8x8x16xf32>
  %p = tensor.pad %x low[0, 1, 1, 0] high[0, 0, 1, 0] { ^bb0(%i: index, %j: index, %k: index, %l: index):
    tensor.yield %zero : f32 } : tensor<?x8x8x16xf32> to tensor<?x9x10x16xf32>
  %q = tensor.pad %x low[0, 1, 1, 0] high[0, 0, 1, 0] { ^bb0(%i: index, %j: index, %k: index, %l: index):
    tensor.yield %one : f32 } : tensor<?x8x8x16xf32> to tensor<?x9x10x16xf32>
  %e = tensor.empty(%b) : tensor<?x4x4x32xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x4x4x32xf32>) -> tensor<?x4x4x32xf32>
  %cast = tensor.cast %p : tensor<?x9x10x16xf32> to tensor<?x?x10x16xf32>
  %u = linalg.generic {indexing_maps = [#image, #filter, #result],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
      ins(%cast, %w : tensor<?x?x10x16xf32>, tensor<3x3x16x32xf32>) outs(%z : tensor<?x4x4x32xf32>) {
    ^bb0(%s: f32, %t: f32, %acc: f32):
      %m = arith.mulf %s, %t : f32
      %a = arith.addf %acc, %m : f32
      linalg.yield %a : f32 } -> tensor<?x4x4x32xf32>
  %v = linalg.generic {indexing_maps = [#image, #filter, #result],
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
      ins(%q, %w : tensor<?x9x10x16xf32>, tensor<3x3x16x32xf32>) outs(%z : tensor<?x4x4x32xf32>) {
    ^bb0(%s: f32, %t: f32, %acc: f32):
      %m = arith.mulf %s, %t : f32
      %a = arith.addf %acc, %m : f32
      linalg.yield %a : f32 } -> tensor<?x4x4x32xf32>
  return %u, %v : tensor<?x4x4x32xf32>, tensor<?x4x4x32xf32>
}
