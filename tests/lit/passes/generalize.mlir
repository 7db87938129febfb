// RUN: tilewright opt %s --pass "generalize" | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK: linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<?x8xf32>, tensor<?x8xf32>)
// CHECK: arith.addf
// CHECK: linalg.generic
// CHECK: math.exp
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]
// CHECK: arith.addf
// CHECK-NOT: linalg.map
func.func @main(%arg0: tensor<?x8xf32> {tw.dims = ["M", 8]}, %arg1: tensor<?x8xf32> {tw.dims = ["M", 8]}, %arg2: tensor<?xf32> {tw.dims = ["M"]}) -> tensor<?xf32> attributes {tw.ranges = {M = [1, 8, 1]}} {
  %0 = linalg.add ins(%arg0, %arg1 : tensor<?x8xf32>, tensor<?x8xf32>) outs(%arg0 : tensor<?x8xf32>) -> tensor<?x8xf32>
  %1 = linalg.map { math.exp } ins(%0 : tensor<?x8xf32>) outs(%arg0 : tensor<?x8xf32>)
  %2 = linalg.reduce { arith.addf } ins(%1 : tensor<?x8xf32>) outs(%arg2 : tensor<?xf32>) dimensions = [1]
  return %2 : tensor<?xf32>
}
