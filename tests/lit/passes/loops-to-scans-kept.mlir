// RUN: tilewright opt %s --pass "lift-control-flow,loops-to-scans" | filecheck %s

// What is carried goes through its other elements: the loop stays one, and says why.
// CHECK: scf.while
// CHECK: tw.kept = "place: a carried tensor is read at other places than it goes on at"
func.func @turned(%x: tensor<4x4xf32> {tw.dims = [4, 4]}) -> tensor<4x4xf32> attributes {tw.ranges = {i0 = [0, 3, 1]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %room = tensor.empty() : tensor<4x4xf32>
  %r:2 = scf.while (%i = %c0, %a = %x) : (index, tensor<4x4xf32>) -> (index, tensor<4x4xf32>) {
    %more = arith.cmpi slt, %i, %c3 : index
    scf.condition(%more) %i, %a : index, tensor<4x4xf32>
  } do {
  ^bb0(%j: index, %b: tensor<4x4xf32>):
    %y = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>],
        iterator_types = ["parallel", "parallel"]} ins(%b : tensor<4x4xf32>) outs(%room : tensor<4x4xf32>) {
    ^bb0(%p: f32, %o: f32):
      %s = arith.addf %p, %p : f32
      linalg.yield %s : f32
    } -> tensor<4x4xf32>
    %next = arith.addi %j, %c1 : index
    scf.yield %next, %y : index, tensor<4x4xf32>
  } attributes {tw.counters = ["i0", ""], tw.largest = ["2", ""], tw.steps = ["1", ""]}
  return %r#1 : tensor<4x4xf32>
}
