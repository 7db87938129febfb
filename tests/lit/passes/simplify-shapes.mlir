// RUN: tilewright opt %s --pass "simplify-shapes" | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK: %[[B:.*]] = tensor.dim %arg0, %{{.*}} : tensor<?x?x768xf32>
// CHECK: %[[S:.*]] = tensor.dim %arg0, %{{.*}} : tensor<?x?x768xf32>
// CHECK-NOT: arith.divsi
// CHECK-NOT: arith.select
// CHECK-NOT: arith.maxui
// CHECK: tensor.empty(%[[B]], %[[S]]) : tensor<?x12x?xf32>
func.func @main(%arg0: tensor<?x?x768xf32> {tw.dims = ["B", "S", 768]}) -> tensor<?x12x?xf32> attributes {tw.ranges = {B = [1, 8, 1], S = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c12 = arith.constant 12 : index
  %c0_i64 = arith.constant 0 : i64
  %c768_i64 = arith.constant 768 : i64
  %dim = tensor.dim %arg0, %c0 : tensor<?x?x768xf32>
  %0 = arith.index_cast %dim : index to i64
  %dim_7 = tensor.dim %arg0, %c1 : tensor<?x?x768xf32>
  %1 = arith.index_cast %dim_7 : index to i64
  %14 = arith.cmpi slt, %1, %c0_i64 : i64
  %17 = arith.muli %0, %c768_i64 : i64
  %19 = arith.muli %0, %1 : i64
  %20 = arith.muli %19, %c768_i64 : i64
  %21 = arith.divsi %20, %17 : i64
  %23 = arith.select %14, %0, %21 : i64
  %25 = arith.index_cast %23 : i64 to index
  %28 = arith.muli %dim, %c12 : index
  %32 = arith.divsi %28, %c12 : index
  %46 = arith.maxui %32, %dim : index
  %9 = tensor.empty(%46, %25) : tensor<?x12x?xf32>
  return %9 : tensor<?x12x?xf32>
}
