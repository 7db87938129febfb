// RUN: tilewright opt %s --pass "normalize" | filecheck %s

#id = affine_map<(d0, d1) -> (d0, d1)>

// CHECK-LABEL: func.func @transpose
// CHECK-NOT: linalg.transpose
// CHECK: linalg.generic
func.func @transpose(%x: tensor<4x8xf32>) -> tensor<8x4xf32> {
  %e = tensor.empty() : tensor<8x4xf32>
  %t = linalg.transpose ins(%x : tensor<4x8xf32>) outs(%e : tensor<8x4xf32>) permutation = [1, 0]
  return %t : tensor<8x4xf32>
}

// A splat is a scalar in the body, an unused operand goes, an init that is not read is an empty tensor.
// CHECK-LABEL: func.func @operands
// CHECK-SAME: (%[[X:.+]]: tensor<4x8xf32>, %[[Y:.+]]: tensor<4x8xf32>)
// CHECK: %[[EMPTY:.+]] = tensor.empty() : tensor<4x8xf32>
// CHECK: linalg.generic {{.*}} ins(%[[X]] : tensor<4x8xf32>) outs(%[[EMPTY]] : tensor<4x8xf32>)
// CHECK: ^bb0(%[[IN:.+]]: f32, %{{.+}}: f32):
// CHECK: arith.addf %[[IN]], %[[TWO:.+]] : f32
func.func @operands(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %two = arith.constant dense<2.0> : tensor<4x8xf32>
  %r = linalg.generic {indexing_maps = [#id, #id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %y, %two : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) outs(%y : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32, %o: f32):
    %s = arith.addf %a, %c : f32
    linalg.yield %s : f32
  } -> tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}

// CHECK-LABEL: func.func @generate
// CHECK-NOT: tensor.generate
// CHECK: linalg.generic
// CHECK: linalg.index 0
// CHECK: linalg.index 1
func.func @generate(%x: tensor<?x8xf32> {tw.dims = ["B", 8]}) -> tensor<?x8xi64> {
  %c0 = arith.constant 0 : index
  %b = tensor.dim %x, %c0 : tensor<?x8xf32>
  %g = tensor.generate %b {
  ^bb0(%i: index, %j: index):
    %k = arith.addi %i, %j : index
    %v = arith.index_cast %k : index to i64
    tensor.yield %v : i64
  } : tensor<?x8xi64>
  return %g : tensor<?x8xi64>
}

// A contraction and its fill keep their names.
// CHECK-LABEL: func.func @named
// CHECK: linalg.fill
// CHECK: linalg.matmul
func.func @named(%x: tensor<4x8xf32>, %w: tensor<8x2xf32>) -> tensor<4x2xf32> {
  %z = arith.constant dense<0.0> : tensor<4x2xf32>
  %m = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x2xf32>) outs(%z : tensor<4x2xf32>) -> tensor<4x2xf32>
  return %m : tensor<4x2xf32>
}

// A slice of an empty tensor is an empty one: a view of it would be a place that nothing allocates.
// CHECK-LABEL: func.func @slice_of_empty
// CHECK-NOT: tensor.extract_slice
// CHECK: tensor.empty() : tensor<4xf32>
// CHECK-NOT: tensor.extract_slice
func.func @slice_of_empty(%x: tensor<4xf32>) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<8xf32>
  %s = tensor.extract_slice %e[0] [4] [2] : tensor<8xf32> to tensor<4xf32>
  %y = linalg.exp ins(%x : tensor<4xf32>) outs(%s : tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}

// A result without elements is an empty tensor, and what sums none of them is what it starts from.
// CHECK-LABEL: func.func @no_elements
// CHECK-NOT: linalg.generic
// CHECK-DAG: %[[Z:.+]] = linalg.fill
// CHECK-DAG: %[[E:.+]] = tensor.empty() : tensor<4x0xf32>
// CHECK: return %[[E]], %[[Z]]
func.func @no_elements(%x: tensor<4x0xf32>) -> (tensor<4x0xf32>, tensor<4xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x0xf32>
  %y = linalg.exp ins(%x : tensor<4x0xf32>) outs(%e : tensor<4x0xf32>) -> tensor<4x0xf32>
  %r = tensor.empty() : tensor<4xf32>
  %z = linalg.fill ins(%zero : f32) outs(%r : tensor<4xf32>) -> tensor<4xf32>
  %s = linalg.generic {indexing_maps = [#id, affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<4x0xf32>) outs(%z : tensor<4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %v = arith.addf %out, %in : f32
    linalg.yield %v : f32
  } -> tensor<4xf32>
  return %y, %s : tensor<4x0xf32>, tensor<4xf32>
}
