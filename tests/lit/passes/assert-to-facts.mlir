// RUN: tilewright opt %s --pass "assert-to-facts" | filecheck %s

// Sizes are never negative; whether S is at most 64 depends on the shape.
// CHECK-LABEL: func.func @main
// CHECK-NOT: "negative values not allowed in new dimensions"
// CHECK: cf.assert %{{.*}}, "too long"
// CHECK-NOT: cf.assert
func.func @main(%arg0: tensor<?x?x768xf32> {tw.dims = ["B", "S", 768]}) -> tensor<?x?x768xf32> attributes {tw.ranges = {B = [1, 8, 1], S = [1, 128, 1]}} {
  %true = arith.constant true
  %c0_i64 = arith.constant 0 : i64
  %c64_i64 = arith.constant 64 : i64
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %dim = tensor.dim %arg0, %c0 : tensor<?x?x768xf32>
  %0 = arith.index_cast %dim : index to i64
  %2 = arith.cmpi sge, %0, %c0_i64 : i64
  cf.assert %2, "negative values not allowed in new dimensions"
  %dim_0 = tensor.dim %arg0, %c1 : tensor<?x?x768xf32>
  %1 = arith.index_cast %dim_0 : index to i64
  %3 = arith.cmpi sle, %1, %c64_i64 : i64
  cf.assert %3, "too long"
  cf.assert %true, "mismatched size for broadcast"
  return %arg0 : tensor<?x?x768xf32>
}
