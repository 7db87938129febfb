// RUN: tilewright opt %s --pass "fold-transpose" | filecheck %s
// RUN: tilewright opt %s --pass "fold-transpose{results=false}" | filecheck %s --check-prefix=KEEP

// CHECK-DAG: #[[Q:.*]] = affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d1, d4)>
// CHECK-DAG: #[[K:.*]] = affine_map<(d0, d1, d2, d3, d4) -> (d0, d3, d1, d4)>
// CHECK-DAG: #[[OUT:.*]] = affine_map<(d0, d1, d2, d3, d4) -> (d0, d2, d1, d3)>
// CHECK-LABEL: func.func @main
// CHECK-NOT: linalg.transpose
// CHECK: linalg.generic {indexing_maps = [#[[Q]], #[[K]], #[[OUT]]]
// CHECK-SAME: ins(%arg0, %arg1 : tensor<?x?x12x64xf32>, tensor<?x?x12x64xf32>)
// CHECK-NOT: linalg.transpose
// CHECK: return
// KEEP: linalg.generic
// KEEP: linalg.transpose
#q = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d4)>
#k = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d4, d3)>
#out = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2, d3)>
func.func @main(%arg0: tensor<?x?x12x64xf32> {tw.dims = ["B", "S", 12, 64]}, %arg1: tensor<?x?x12x64xf32> {tw.dims = ["B", "S", 12, 64]}) -> tensor<?x?x12x?xf32> attributes {tw.ranges = {B = [1, 8, 1], S = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %cst = arith.constant 0.000000e+00 : f32
  %b = tensor.dim %arg0, %c0 : tensor<?x?x12x64xf32>
  %s = tensor.dim %arg0, %c1 : tensor<?x?x12x64xf32>
  %26 = tensor.empty(%b, %s) : tensor<?x12x?x64xf32>
  %transposed = linalg.transpose ins(%arg0 : tensor<?x?x12x64xf32>) outs(%26 : tensor<?x12x?x64xf32>) permutation = [0, 2, 1, 3]
  %27 = tensor.empty(%b, %s) : tensor<?x12x64x?xf32>
  %transposed_13 = linalg.transpose ins(%arg1 : tensor<?x?x12x64xf32>) outs(%27 : tensor<?x12x64x?xf32>) permutation = [0, 2, 3, 1]
  %29 = tensor.empty(%b, %s, %s) : tensor<?x12x?x?xf32>
  %30 = linalg.fill ins(%cst : f32) outs(%29 : tensor<?x12x?x?xf32>) -> tensor<?x12x?x?xf32>
  %31 = linalg.generic {indexing_maps = [#q, #k, #out], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]} ins(%transposed, %transposed_13 : tensor<?x12x?x64xf32>, tensor<?x12x64x?xf32>) outs(%30 : tensor<?x12x?x?xf32>) {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %0 = arith.mulf %in, %in_0 : f32
    %1 = arith.addf %out, %0 : f32
    linalg.yield %1 : f32
  } -> tensor<?x12x?x?xf32>
  %52 = tensor.empty(%b, %s, %s) : tensor<?x?x12x?xf32>
  %transposed_19 = linalg.transpose ins(%31 : tensor<?x12x?x?xf32>) outs(%52 : tensor<?x?x12x?xf32>) permutation = [0, 2, 1, 3]
  return %transposed_19 : tensor<?x?x12x?xf32>
}
