// RUN: tilewright opt %s --pass "fuse,look-up-in-product,outline,pack-constants" | filecheck %s

// A product looks up the matrix that %at names for each of a batch. The table lies in panels of 48 columns, [panel, matrix, k,
// column of the panel], and so does what is looked up: the place that data name stays the table's second axis.
// CHECK-DAG: #[[AT:.*]] = affine_map<(d0, d1, d2, d3) -> (d1)>
// CHECK-DAG: #[[OUT:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
// CHECK-DAG: #[[PANEL:.*]] = affine_map<(d0, d1, d2, d3) -> (d2 floordiv 48, d0, d3, d2 mod 48)>
// CHECK: func.func private @gather_batch_matmul({{.*}}%[[TABLE:.*]]: tensor<2x7x64x48xf32> {tw.constant, tw.dims = [2, 7, 64, 48], tw.panel = 48 : i64
// CHECK: %[[MADE:.*]] = linalg.generic {indexing_maps = [#[[AT]], #[[OUT]]]
// CHECK-NEXT: ^bb0(%[[PLACE:.*]]: index, {{.*}}):
// CHECK-DAG: %[[K:.*]] = linalg.index 2
// CHECK-DAG: %[[P:.*]] = linalg.index 0
// CHECK-DAG: %[[N:.*]] = linalg.index 3
// CHECK: tensor.extract %[[TABLE]][%[[P]], %[[PLACE]], %[[K]], %[[N]]] : tensor<2x7x64x48xf32>
// CHECK: linalg.generic {indexing_maps = [{{.*}}, #[[PANEL]], {{.*}}ins({{.*}}, %[[MADE]] : tensor<5x4x64xf32>, tensor<2x5x64x48xf32>)
// CHECK: func.func @main({{.*}}tensor<2x7x64x48xf32> {tw.constant, tw.dims = [2, 7, 64, 48], tw.pack = [{{.*}}]}

#places = affine_map<(b, k, n) -> (b)>
#all = affine_map<(b, k, n) -> (b, k, n)>

func.func @main(%table: tensor<7x64x96xf32> {tw.constant, tw.dims = [7, 64, 96], tw.name = "table"},
    %at: tensor<5xindex> {tw.dims = [5], tw.name = "at"}, %x: tensor<5x4x64xf32> {tw.dims = [5, 4, 64], tw.name = "x"})
    -> (tensor<5x4x96xf32> {tw.name = "result0"}) {
  %zero = arith.constant 0.0 : f32
  %we = tensor.empty() : tensor<5x64x96xf32>
  %w = linalg.generic {indexing_maps = [#places, #all], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%at : tensor<5xindex>) outs(%we : tensor<5x64x96xf32>) {
  ^bb0(%a: index, %o: f32):
    %k = linalg.index 1 : index
    %n = linalg.index 2 : index
    %v = tensor.extract %table[%a, %k, %n] : tensor<7x64x96xf32>
    linalg.yield %v : f32
  } -> tensor<5x64x96xf32>
  %e = tensor.empty() : tensor<5x4x96xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<5x4x96xf32>) -> tensor<5x4x96xf32>
  %p = linalg.batch_matmul ins(%x, %w : tensor<5x4x64xf32>, tensor<5x64x96xf32>) outs(%f : tensor<5x4x96xf32>) -> tensor<5x4x96xf32>
  return %p : tensor<5x4x96xf32>
}
