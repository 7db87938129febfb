// RUN: tilewright opt %s --pass "lift-control-flow,update-in-place" | filecheck %s

// A tensor of which each step writes a row begins with anything where the rows are all of it, and with what it is given where they
// are all but the first.
// CHECK-LABEL: func.func @main
// CHECK: %[[ANY:.*]] = tensor.empty({{.*}}) {tw.overwritten}
// CHECK: call @frame_1({{.*}}%[[ANY]]
// CHECK-NOT: tw.overwritten
func.func @main(%x: tensor<?x4xf32> {tw.dims = ["T", 4]}, %y: tensor<?x4xf32> {tw.dims = ["T", 4]},
                %z: tensor<?x4xf32> {tw.dims = ["T + 1", 4]}) -> (tensor<?x4xf32>, tensor<?x4xf32>)
    attributes {tw.ranges = {T = [1, 8, 1], i0 = [0, 7, 1]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = tensor.dim %x, %c0 : tensor<?x4xf32>
  %r:3 = scf.while (%i = %c0, %a = %y, %b = %z) : (index, tensor<?x4xf32>, tensor<?x4xf32>)
      -> (index, tensor<?x4xf32>, tensor<?x4xf32>) {
    %more = arith.cmpi slt, %i, %n : index
    scf.condition(%more) %i, %a, %b : index, tensor<?x4xf32>, tensor<?x4xf32>
  } do {
  ^bb0(%i: index, %a: tensor<?x4xf32>, %b: tensor<?x4xf32>):
    %next = arith.addi %i, %c1 : index
    %at = tensor.extract_slice %x[%i, 0] [1, 4] [1, 1] : tensor<?x4xf32> to tensor<4xf32>
    %all = tensor.insert_slice %at into %a[%i, 0] [1, 4] [1, 1] : tensor<4xf32> into tensor<?x4xf32>
    %most = tensor.insert_slice %at into %b[%next, 0] [1, 4] [1, 1] : tensor<4xf32> into tensor<?x4xf32>
    scf.yield %next, %all, %most : index, tensor<?x4xf32>, tensor<?x4xf32>
  } attributes {tw.counters = ["i0", "", ""], tw.largest = ["T - 1", "", ""], tw.steps = ["1", "", ""]}
  return %r#1, %r#2 : tensor<?x4xf32>, tensor<?x4xf32>
}
