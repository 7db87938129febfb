// RUN: tilewright opt %s --pass "inline-control-flow" | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK: %[[R:.*]] = scf.if
// CHECK: scf.yield
// CHECK: return %[[R]]
// CHECK-NOT: func.func @frame
func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>, %p: i1) -> tensor<4xf32> {
  %r = func.call @frame(%x, %y, %p) : (tensor<4xf32>, tensor<4xf32>, i1) -> tensor<4xf32>
  return %r : tensor<4xf32>
}
func.func @frame(%x: tensor<4xf32>, %y: tensor<4xf32>, %p: i1) -> tensor<4xf32> attributes {tw.frame} {
  %r = scf.if %p -> tensor<4xf32> {
    scf.yield %x : tensor<4xf32>
  } else {
    scf.yield %y : tensor<4xf32>
  }
  return %r : tensor<4xf32>
}

// A body of a branch, too; what has a key stays a call.
// CHECK-LABEL: func.func @nested
// CHECK: scf.if
// CHECK-NEXT: %[[S:.*]] = func.call @double
// CHECK-NEXT: scf.yield %[[S]]
// CHECK-NOT: func.func @body
func.func @nested(%x: tensor<4xf32>, %p: i1) -> tensor<4xf32> {
  %r = func.call @other(%x, %p) : (tensor<4xf32>, i1) -> tensor<4xf32>
  return %r : tensor<4xf32>
}
func.func @other(%x: tensor<4xf32>, %p: i1) -> tensor<4xf32> attributes {tw.frame} {
  %r = scf.if %p -> tensor<4xf32> {
    %s = func.call @body(%x) : (tensor<4xf32>) -> tensor<4xf32>
    scf.yield %s : tensor<4xf32>
  } else {
    scf.yield %x : tensor<4xf32>
  }
  return %r : tensor<4xf32>
}
func.func @body(%x: tensor<4xf32>) -> tensor<4xf32> {
  %r = func.call @double(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}
func.func private @double(%x: tensor<4xf32>) -> tensor<4xf32> attributes {tw.key = "0"} {
  return %x : tensor<4xf32>
}
