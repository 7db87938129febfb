// RUN: tilewright opt %s --pass "find-codes" | filecheck %s

// A decoding of constants that a product reads is marked with its format; one that something else reads is not.
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic {{.*}} ins(%arg1, %arg2 : tensor<4x8xi8>, tensor<4x2xf32>) {{.*}}attrs = {{.*}}tw.codes = "u4g8"
// CHECK: linalg.matmul
func.func @main(%arg0: tensor<?x16xf32> {tw.dims = ["N", 16]}, %arg1: tensor<4x8xi8> {tw.constant, tw.dims = [4, 8]}, %arg2: tensor<4x2xf32> {tw.constant, tw.dims = [4, 2]}) -> tensor<?x4xf32> attributes {tw.ranges = {N = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %mask = arith.constant 15 : i8
  %middle = arith.constant 8.0 : f32
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %arg0, %c0 : tensor<?x16xf32>
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
  %empty = tensor.empty(%n) : tensor<?x4xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x4xf32>) -> tensor<?x4xf32>
  %product = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>] ins(%arg0, %weight : tensor<?x16xf32>, tensor<4x16xf32>) outs(%start : tensor<?x4xf32>) -> tensor<?x4xf32>
  return %product : tensor<?x4xf32>
}

// Weights out of a pool, by indices: marked alike, and decoded in the order in which the product reads them.
// CHECK-LABEL: func.func @pool
// CHECK: linalg.generic {{.*}} ins(%arg1 : tensor<6x2xi8>) outs(%{{.*}} : tensor<16x6xf32>) {{.*}}tw.codes = "p4x8f32"
// CHECK-NOT: linalg.transpose
func.func @pool(%arg0: tensor<?x16xf32> {tw.dims = ["N", 16]}, %arg1: tensor<6x2xi8> {tw.constant, tw.dims = [6, 2]}, %arg2: tensor<4x8xf32> {tw.constant, tw.dims = [4, 8]}) -> tensor<?x6xf32> attributes {tw.ranges = {N = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %c3 = arith.constant 3 : index
  %c8 = arith.constant 8 : index
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %arg0, %c0 : tensor<?x16xf32>
  %into = tensor.empty() : tensor<6x16xf32>
  %weight = linalg.generic {indexing_maps = [affine_map<(n, k) -> (n, k floordiv 8)>, affine_map<(n, k) -> (n, k)>], iterator_types = ["parallel", "parallel"]} ins(%arg1 : tensor<6x2xi8>) outs(%into : tensor<6x16xf32>) {
  ^bb0(%byte: i8, %out: f32):
    %k = linalg.index 1 : index
    %place = arith.remui %k, %c8 : index
    %entry = arith.index_castui %byte : i8 to index
    %kept = arith.minui %entry, %c3 : index
    %value = tensor.extract %arg2[%kept, %place] : tensor<4x8xf32>
    linalg.yield %value : f32
  } -> tensor<6x16xf32>
  %turned = tensor.empty() : tensor<16x6xf32>
  %across = linalg.transpose ins(%weight : tensor<6x16xf32>) outs(%turned : tensor<16x6xf32>) permutation = [1, 0]
  %empty = tensor.empty(%n) : tensor<?x6xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x6xf32>) -> tensor<?x6xf32>
  %product = linalg.matmul ins(%arg0, %across : tensor<?x16xf32>, tensor<16x6xf32>) outs(%start : tensor<?x6xf32>) -> tensor<?x6xf32>
  return %product : tensor<?x6xf32>
}
