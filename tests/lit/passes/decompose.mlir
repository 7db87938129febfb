// RUN: tilewright opt %s --pass "decompose" | filecheck %s

// The maximum starts at -inf and propagates NaN; the quotient comes last.
// CHECK-LABEL: func.func @f32
// CHECK-NOT: linalg.softmax
// CHECK: %[[LOW:.+]] = arith.constant 0xFF800000 : f32
// CHECK: linalg.fill ins(%[[LOW]] : f32)
// CHECK: iterator_types = ["parallel", "reduction"]
// CHECK: arith.maximumf
// CHECK: arith.subf
// CHECK: math.exp
// CHECK: iterator_types = ["parallel", "reduction"]
// CHECK: arith.addf
// CHECK: arith.divf
func.func @f32(%x: tensor<?x?xf32> {tw.dims = ["R", "C"]}) -> tensor<?x?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = tensor.dim %x, %c0 : tensor<?x?xf32>
  %c = tensor.dim %x, %c1 : tensor<?x?xf32>
  %e = tensor.empty(%r, %c) : tensor<?x?xf32>
  %y = linalg.softmax dimension(1) ins(%x : tensor<?x?xf32>) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}

// f16 is computed in f32; the reduced axis may be any.
// CHECK-LABEL: func.func @f16
// CHECK: arith.extf %{{.+}} : f16 to f32
// CHECK: iterator_types = ["reduction", "parallel"]
// CHECK: arith.maximumf %{{.+}}, %{{.+}} : f32
// CHECK: arith.divf %{{.+}}, %{{.+}} : f32
// CHECK: arith.truncf %{{.+}} : f32 to f16
func.func @f16(%x: tensor<4x8xf16>) -> tensor<4x8xf16> {
  %e = tensor.empty() : tensor<4x8xf16>
  %y = linalg.softmax dimension(0) ins(%x : tensor<4x8xf16>) outs(%e : tensor<4x8xf16>) -> tensor<4x8xf16>
  return %y : tensor<4x8xf16>
}
