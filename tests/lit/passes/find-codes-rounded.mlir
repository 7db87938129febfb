// RUN: tilewright opt %s --pass "find-codes{rounded=true}" | filecheck %s
// RUN: tilewright opt %s --pass "find-codes" | filecheck %s --check-prefix=PLAIN

// What rounds decoded values to f16 is part of the decoding where the target multiplies them so; elsewhere nothing is marked.
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic {{.*}} ins(%arg1, %arg2 : tensor<4x8xi8>, tensor<4x2xf32>) outs(%{{.*}} : tensor<4x16xf16>) {{.*}}tw.codes = "u4g8rf16"
// CHECK: arith.truncf
// CHECK-NOT: linalg.generic
// CHECK: return
// PLAIN-NOT: tw.codes
func.func @main(%arg0: tensor<?x16xf16> {tw.dims = ["N", 16]}, %arg1: tensor<4x8xi8> {tw.constant, tw.dims = [4, 8]}, %arg2: tensor<4x2xf32> {tw.constant, tw.dims = [4, 2]}) -> tensor<?x4xf32> attributes {tw.ranges = {N = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %mask = arith.constant 15 : i8
  %middle = arith.constant 8.0 : f32
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %arg0, %c0 : tensor<?x16xf16>
  %into = tensor.empty() : tensor<4x16xf32>
  %weight = linalg.generic {indexing_maps = [affine_map<(n, k) -> (n, k floordiv 2)>, affine_map<(n, k) -> (n, k floordiv 8)>, affine_map<(n, k) -> (n, k)>], iterator_types = ["parallel", "parallel"]} ins(%arg1, %arg2 : tensor<4x8xi8>, tensor<4x2xf32>) outs(%into : tensor<4x16xf32>) {
  ^bb0(%byte: i8, %scale: f32, %out: f32):
    %k = linalg.index 1 : index
    %half = arith.remui %k, %c2 : index
    %places = arith.muli %half, %c4 : index
    %shift = arith.index_cast %places : index to i8
    %moved = arith.shrui %byte, %shift : i8
    %code = arith.andi %moved, %mask : i8
    %value = arith.uitofp %code : i8 to f32
    %centred = arith.subf %value, %middle : f32
    %scaled = arith.mulf %centred, %scale : f32
    linalg.yield %scaled : f32
  } -> tensor<4x16xf32>
  %narrow = tensor.empty() : tensor<4x16xf16>
  %rounded = linalg.generic {indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>], iterator_types = ["parallel", "parallel"]} ins(%weight : tensor<4x16xf32>) outs(%narrow : tensor<4x16xf16>) {
  ^bb0(%value: f32, %out: f16):
    %half = arith.truncf %value : f32 to f16
    linalg.yield %half : f16
  } -> tensor<4x16xf16>
  %empty = tensor.empty(%n) : tensor<?x4xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x4xf32>) -> tensor<?x4xf32>
  %product = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>] ins(%arg0, %rounded : tensor<?x16xf16>, tensor<4x16xf16>) outs(%start : tensor<?x4xf32>) -> tensor<?x4xf32>
  return %product : tensor<?x4xf32>
}
