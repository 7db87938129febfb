// RUN: tilewright opt %s --pass "fuse,outline" | filecheck %s
// RUN: tilewright opt %s --pass "fuse{numbers=true},outline" | filecheck %s --check-prefix=NUMBERS
// RUN: not tilewright opt %s --pass "outline" 2>&1 | filecheck %s --check-prefix=UNFUSED
// UNFUSED: has no region; run fuse before outline

// Equal operations share a function, whatever their numbers; calls have them.
// NUMBERS: func.func private @exp
// NUMBERS-NOT: tw.operation
// NUMBERS-LABEL: func.func @main
// NUMBERS: call @exp({{.+}}) {tw.operation = [{{[0-9]+}}]}
// NUMBERS: call @exp({{.+}}) {tw.operation = [{{[0-9]+}}]}

#id = affine_map<(d0, d1, d2) -> (d0, d1, d2)>

// The batch and sequence axes are walked as one, the second exp calls the same function.
// CHECK: func.func private @exp(%{{.+}}: tensor<?xf32> {tw.dims = ["d0"], tw.unit = 0 : i64}, %[[D0:.+]]: index {tw.dims = ["d0"]})
// CHECK-SAME: -> (tensor<?xf32> {tw.dims = ["d0"], tw.unit = 0 : i64})
// CHECK-SAME: tw.kind = "pointwise"
// CHECK: tensor.empty(%[[D0]]) : tensor<?xf32>
// CHECK: math.exp
// CHECK-NOT: func.func private
// CHECK-LABEL: func.func @main
// CHECK-NOT: linalg
// CHECK: tensor.collapse_shape %{{.+}} {{\[\[}}0, 1, 2]]
// CHECK: call @exp
// CHECK: tensor.expand_shape
// CHECK: call @exp
func.func @main(%x: tensor<?x?x8xf32> {tw.dims = ["B", "S", 8]}, %y: tensor<4x8x?xf32> {tw.dims = [4, 8, "S"]})
    -> (tensor<?x?x8xf32>, tensor<4x8x?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %b = tensor.dim %x, %c0 : tensor<?x?x8xf32>
  %s = tensor.dim %x, %c1 : tensor<?x?x8xf32>
  %e = tensor.empty(%b, %s) : tensor<?x?x8xf32>
  %e2 = tensor.empty(%s) : tensor<4x8x?xf32>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x : tensor<?x?x8xf32>) outs(%e : tensor<?x?x8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %q = math.exp %a : f32
    linalg.yield %q : f32
  } -> tensor<?x?x8xf32>
  %r2 = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%y : tensor<4x8x?xf32>) outs(%e2 : tensor<4x8x?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %q = math.exp %a : f32
    linalg.yield %q : f32
  } -> tensor<4x8x?xf32>
  return %r, %r2 : tensor<?x?x8xf32>, tensor<4x8x?xf32>
}
