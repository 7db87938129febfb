// RUN: tilewright opt %s --pass "widen-sub-byte,mlir{pipeline=canonicalize}" | filecheck %s

// Tensors hold bytes; the body computes on four bits as before; the constant is extended with its sign.
// CHECK-LABEL: func.func @f
// CHECK-SAME: (%{{.+}}: tensor<?x4xi8>
// CHECK: arith.constant dense<[1, -2, 3, -4]> : tensor<4xi8>
// CHECK: ^bb0(%[[X:.+]]: i8, %[[W:.+]]: i8, %{{.+}}: i8):
// CHECK-DAG: arith.trunci %[[X]] : i8 to i4
// CHECK-DAG: arith.trunci %[[W]] : i8 to i4
// CHECK: arith.addi %{{.+}}, %{{.+}} : i4
// CHECK: %[[R:.+]] = arith.extsi %{{.+}} : i4 to i8
// CHECK: linalg.yield %[[R]] : i8
#a = affine_map<(d0, d1) -> (d0, d1)>
#w = affine_map<(d0, d1) -> (d1)>
func.func @f(%x: tensor<?x4xi4> {tw.dims = ["T", 4]}, %e: tensor<?x4xi4> {tw.dims = ["T", 4]}) -> tensor<?x4xi4> {
  %w = arith.constant dense<[1, -2, 3, -4]> : tensor<4xi4>
  %y = linalg.generic {indexing_maps = [#a, #w, #a], iterator_types = ["parallel", "parallel"]}
      ins(%x, %w : tensor<?x4xi4>, tensor<4xi4>) outs(%e : tensor<?x4xi4>) {
    ^bb0(%p: i4, %q: i4, %o: i4):
      %s = arith.addi %p, %q : i4
      linalg.yield %s : i4
  } -> tensor<?x4xi4>
  return %y : tensor<?x4xi4>
}
