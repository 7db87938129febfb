// RUN: tilewright opt %s --pass "fuse,look-up-in-product" | filecheck %s
// RUN: tilewright opt %s --pass "fuse" | filecheck %s --check-prefix=APART

#places = affine_map<(b, k, n) -> (b)>
#all = affine_map<(b, k, n) -> (b, k, n)>

// Of each batch the matrix that %at names: the product looks it up itself. Rows that %of names differ along the rows of the
// product, too: they stay apart.
// CHECK-LABEL: func.func @main
// CHECK: tw.region = 0 : i64
// CHECK: tensor.extract %arg3
// CHECK: tw.region = 1 : i64
// CHECK: tensor.extract %arg0
// CHECK: linalg.batch_matmul {tw.region = 1 : i64}
// APART-LABEL: func.func @main
// APART: tw.region = 0 : i64
// APART: tw.region = 1 : i64
// APART: linalg.batch_matmul {tw.region = 2 : i64}
func.func @main(%table: tensor<7x8x9xf32>, %at: tensor<5xindex>, %of: tensor<5x4xindex>, %rows: tensor<3x8xf32>)
    -> tensor<5x4x9xf32> {
  %zero = arith.constant 0.0 : f32
  %we = tensor.empty() : tensor<5x8x9xf32>
  %w = linalg.generic {indexing_maps = [#places, #all], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%at : tensor<5xindex>) outs(%we : tensor<5x8x9xf32>) {
  ^bb0(%a: index, %o: f32):
    %k = linalg.index 1 : index
    %n = linalg.index 2 : index
    %x = tensor.extract %table[%a, %k, %n] : tensor<7x8x9xf32>
    linalg.yield %x : f32
  } -> tensor<5x8x9xf32>
  %xe = tensor.empty() : tensor<5x4x8xf32>
  %x = linalg.generic {indexing_maps = [affine_map<(b, m, k) -> (b, m)>, #all],
      iterator_types = ["parallel", "parallel", "parallel"]} ins(%of : tensor<5x4xindex>) outs(%xe : tensor<5x4x8xf32>) {
  ^bb0(%a: index, %o: f32):
    %k = linalg.index 2 : index
    %v = tensor.extract %rows[%a, %k] : tensor<3x8xf32>
    linalg.yield %v : f32
  } -> tensor<5x4x8xf32>
  %e = tensor.empty() : tensor<5x4x9xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<5x4x9xf32>) -> tensor<5x4x9xf32>
  %p = linalg.batch_matmul ins(%x, %w : tensor<5x4x8xf32>, tensor<5x8x9xf32>) outs(%f : tensor<5x4x9xf32>) -> tensor<5x4x9xf32>
  return %p : tensor<5x4x9xf32>
}
