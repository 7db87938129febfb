// RUN: tilewright opt %s --pass "insert-to-select" | filecheck %s

// CHECK-LABEL: func.func @f
// CHECK-SAME: (%[[X:.+]]: tensor<?x8xf32>{{.*}}, %[[S:.+]]: f32, %[[I:.+]]: index)
// CHECK: linalg.generic {{.*}} ins(%[[X]]
// CHECK: linalg.index 0
// CHECK: arith.cmpi eq, %{{.+}}, %[[I]]
// CHECK: arith.select %{{.+}}, %[[S]], %{{.+}} : f32
// CHECK-NOT: tensor.insert
func.func @f(%x: tensor<?x8xf32> {tw.dims = ["T", 8]}, %s: f32, %i: index) -> tensor<?x8xf32> {
  %c1 = arith.constant 1 : index
  %y = tensor.insert %s into %x[%i, %c1] : tensor<?x8xf32>
  return %y : tensor<?x8xf32>
}
