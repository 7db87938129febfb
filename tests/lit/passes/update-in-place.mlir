// RUN: tilewright opt %s --pass "lift-control-flow,update-in-place" | filecheck %s

// What goes on as itself with a part put into it is no kernel; the part that is put into another tensor is.
// CHECK-LABEL: func.func @body_0
// CHECK: tensor.insert_slice {{.*}}tw.update
// CHECK: tensor.insert_slice
// CHECK-NOT: tw.update
// CHECK: return
func.func @main(%x: tensor<8x4xf32> {tw.dims = [8, 4]}, %part: tensor<4xf32> {tw.dims = [4]}, %other: tensor<8x4xf32> {tw.dims = [8, 4]})
    -> (tensor<8x4xf32>, tensor<8x4xf32>) attributes {tw.ranges = {i0 = [0, 7, 1]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %r:3 = scf.while (%i = %c0, %a = %x, %b = %x) : (index, tensor<8x4xf32>, tensor<8x4xf32>)
      -> (index, tensor<8x4xf32>, tensor<8x4xf32>) {
    %more = arith.cmpi slt, %i, %c8 : index
    scf.condition(%more) %i, %a, %b : index, tensor<8x4xf32>, tensor<8x4xf32>
  } do {
  ^bb0(%i: index, %a: tensor<8x4xf32>, %b: tensor<8x4xf32>):
    %at = tensor.extract_slice %b[%i, 0] [1, 4] [1, 1] : tensor<8x4xf32> to tensor<4xf32>
    %new = tensor.insert_slice %at into %a[%i, 0] [1, 4] [1, 1] : tensor<4xf32> into tensor<8x4xf32>
    %made = tensor.insert_slice %part into %other[%i, 0] [1, 4] [1, 1] : tensor<4xf32> into tensor<8x4xf32>
    %next = arith.addi %i, %c1 : index
    scf.yield %next, %new, %made : index, tensor<8x4xf32>, tensor<8x4xf32>
  } attributes {tw.counters = ["i0", "", ""], tw.largest = ["7", "", ""], tw.steps = ["1", "", ""]}
  return %r#1, %r#2 : tensor<8x4xf32>, tensor<8x4xf32>
}
