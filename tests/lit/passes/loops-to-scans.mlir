// RUN: tilewright opt %s --pass "lift-control-flow,loops-to-scans" | filecheck %s

// h = a[t] * h + h0 becomes a running reduction over the steps, which starts from h0; the rows are its results, and the last
// state is the last of them.
// CHECK-LABEL: func.func @recurrence
// CHECK-NOT: scf.while
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction"]
// CHECK: %[[STEP:.*]] = linalg.index 2
// CHECK: %[[ALONG:.*]] = linalg.index 0
// CHECK: %[[FIRST:.*]] = arith.cmpi eq, %[[STEP]], %{{.*}}
// CHECK: arith.select %[[FIRST]]
// CHECK: arith.mulf
// CHECK: %[[UP:.*]] = arith.cmpi sle, %[[STEP]], %[[ALONG]]
// CHECK: arith.select %[[UP]]
// CHECK: tensor.extract_slice
func.func @recurrence(%a: tensor<?x8xf32> {tw.dims = ["T", 8]}, %h0: tensor<8xf32> {tw.dims = [8]})
    -> (tensor<8xf32>, tensor<?x8xf32>) attributes {tw.ranges = {T = [1, 8, 1], i0 = [0, 7, 1]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = tensor.dim %a, %c0 : tensor<?x8xf32>
  %rows = tensor.empty(%n) : tensor<?x8xf32>
  %r:3 = scf.while (%i = %c0, %h = %h0, %y = %rows) : (index, tensor<8xf32>, tensor<?x8xf32>)
      -> (index, tensor<8xf32>, tensor<?x8xf32>) {
    %more = arith.cmpi slt, %i, %n : index
    scf.condition(%more) %i, %h, %y : index, tensor<8xf32>, tensor<?x8xf32>
  } do {
  ^bb0(%i: index, %h: tensor<8xf32>, %y: tensor<?x8xf32>):
    %at = tensor.extract_slice %a[%i, 0] [1, 8] [1, 1] : tensor<?x8xf32> to tensor<8xf32>
    %new = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
        iterator_types = ["parallel"]} ins(%at : tensor<8xf32>) outs(%h : tensor<8xf32>) {
    ^bb0(%p: f32, %o: f32):
      %m = arith.mulf %p, %o : f32
      linalg.yield %m : f32
    } -> tensor<8xf32>
    %put = tensor.insert_slice %new into %y[%i, 0] [1, 8] [1, 1] : tensor<8xf32> into tensor<?x8xf32>
    %next = arith.addi %i, %c1 : index
    scf.yield %next, %new, %put : index, tensor<8xf32>, tensor<?x8xf32>
  } attributes {tw.counters = ["i0", "", ""], tw.largest = ["T - 1", "", ""], tw.steps = ["1", "", ""]}
  return %r#1, %r#2 : tensor<8xf32>, tensor<?x8xf32>
}
