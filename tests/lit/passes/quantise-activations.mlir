// RUN: tilewright opt %s --pass "find-codes,quantise-activations" | filecheck %s

// Rows that meet a weight in few bits are cut into its groups: the largest magnitude of each, codes of 8 bits, and their decoding,
// which the product reads in place of the rows.
// CHECK-LABEL: func.func @main
// CHECK: tensor.expand_shape %arg0 {{.*}} tensor<?x16xf32> into tensor<?x2x8xf32>
// CHECK: iterator_types = ["parallel", "parallel", "reduction"]
// CHECK: math.roundeven
// CHECK: tw.codes = "s8g8"
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
