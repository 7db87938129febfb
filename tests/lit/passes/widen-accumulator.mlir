// RUN: tilewright opt %s --pass "widen-accumulator" | filecheck %s

// CHECK-LABEL: func.func @matmul
// CHECK: %[[ZERO:.+]] = linalg.fill {{.*}} -> tensor<4x2xf32>
// CHECK: %[[SUM:.+]] = linalg.matmul ins(%{{.+}}, %{{.+}} : tensor<4x8xf16>, tensor<8x2xf16>) outs(%[[ZERO]] : tensor<4x2xf32>)
// CHECK: linalg.generic {{.*}} ins(%[[SUM]] : tensor<4x2xf32>)
// CHECK: arith.truncf %{{.+}} : f32 to f16
func.func @matmul(%x: tensor<4x8xf16>, %w: tensor<8x2xf16>) -> tensor<4x2xf16> {
  %z = arith.constant 0.0 : f16
  %e = tensor.empty() : tensor<4x2xf16>
  %f = linalg.fill ins(%z : f16) outs(%e : tensor<4x2xf16>) -> tensor<4x2xf16>
  %m = linalg.matmul ins(%x, %w : tensor<4x8xf16>, tensor<8x2xf16>) outs(%f : tensor<4x2xf16>) -> tensor<4x2xf16>
  return %m : tensor<4x2xf16>
}

// The product is not rounded before it is added.
// CHECK-LABEL: func.func @squares
// CHECK: ^bb0(%[[IN:.+]]: bf16, %[[SUM:.+]]: f32):
// CHECK-NOT: arith.mulf %{{.+}} : bf16
// CHECK: arith.mulf %{{.+}}, %{{.+}} : f32
// CHECK: arith.addf %{{.+}}, %{{.+}} : f32
func.func @squares(%x: tensor<4x8xbf16>) -> tensor<4xbf16> {
  %z = arith.constant 0.0 : bf16
  %e = tensor.empty() : tensor<4xbf16>
  %f = linalg.fill ins(%z : bf16) outs(%e : tensor<4xbf16>) -> tensor<4xbf16>
  %s = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>],
                       iterator_types = ["parallel", "reduction"]} ins(%x : tensor<4x8xbf16>) outs(%f : tensor<4xbf16>) {
  ^bb0(%a: bf16, %o: bf16):
    %p = arith.mulf %a, %a : bf16
    %r = arith.addf %p, %o : bf16
    linalg.yield %r : bf16
  } -> tensor<4xbf16>
  return %s : tensor<4xbf16>
}

// A maximum rounds nothing and stays.
// CHECK-LABEL: func.func @maximum
// CHECK: arith.maximumf %{{.+}}, %{{.+}} : f16
func.func @maximum(%x: tensor<4x8xf16>, %start: tensor<4xf16>) -> tensor<4xf16> {
  %s = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>],
                       iterator_types = ["parallel", "reduction"]} ins(%x : tensor<4x8xf16>) outs(%start : tensor<4xf16>) {
  ^bb0(%a: f16, %o: f16):
    %r = arith.maximumf %a, %o : f16
    linalg.yield %r : f16
  } -> tensor<4xf16>
  return %s : tensor<4xf16>
}
