// RUN: tilewright opt %s --pass "distribute-codes" | filecheck %s
// RUN: tilewright opt %s --pass "distribute-codes{joined=true}" | filecheck %s --check-prefix=JOINED

// A product with codes of 3 bits, stored as 2 and 1, is the sum of two products.
// CHECK-LABEL: func.func @main
// CHECK: %[[LOW:.*]] = linalg.generic {{.*}} ins(%arg1, %arg3 :
// CHECK: %[[HIGH:.*]] = linalg.generic {{.*}} ins(%arg2, %arg3 :
// CHECK-NOT: ins(%[[LOW]], %[[HIGH]]
// CHECK: %[[FIRST:.*]] = linalg.matmul {{.*}} ins(%arg0, %[[LOW]] :
// CHECK: %[[SECOND:.*]] = linalg.matmul {{.*}} ins(%arg0, %[[HIGH]] :
// CHECK: linalg.generic {{.*}} ins(%[[FIRST]], %[[SECOND]] :
// CHECK: %[[TIMES:.*]] = arith.mulf
// CHECK: arith.addf %{{.*}}, %[[TIMES]]

// Where kernels put the bits together, it is one product with one decoding.
// JOINED-LABEL: func.func @main
// JOINED: %[[WEIGHT:.*]] = linalg.generic {{.*}} ins(%arg1, %arg2, %arg3 :
// JOINED: %[[HIGH:.*]] = arith.shli %{{.*}}, %c2_i8
// JOINED: %[[CODE:.*]] = arith.ori %{{.*}}, %[[HIGH]]
// JOINED: %[[VALUE:.*]] = arith.uitofp %[[CODE]]
// JOINED: arith.mulf %[[VALUE]], %in_1
// JOINED-NOT: linalg.generic
// JOINED: linalg.matmul {{.*}} ins(%arg0, %[[WEIGHT]] :
#plain = affine_map<(n, k) -> (n, k)>
#scales = affine_map<(n, k) -> (n, 0)>
func.func @main(%arg0: tensor<?x16xf32> {tw.dims = ["N", 16]}, %arg1: tensor<4x4xi8> {tw.constant, tw.dims = [4, 4]}, %arg2: tensor<4x2xi8> {tw.constant, tw.dims = [4, 2]}, %arg3: tensor<4x1xf32> {tw.constant, tw.dims = [4, 1]}) -> tensor<?x4xf32> attributes {tw.ranges = {N = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %c8 = arith.constant 8 : index
  %one = arith.constant 1 : i8
  %three = arith.constant 3 : i8
  %four = arith.constant 4.0 : f32
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %arg0, %c0 : tensor<?x16xf32>
  %into = tensor.empty() : tensor<4x16xf32>
  %low = linalg.generic {indexing_maps = [affine_map<(n, k) -> (n, k floordiv 4)>, #scales, #plain], iterator_types = ["parallel", "parallel"]} ins(%arg1, %arg3 : tensor<4x4xi8>, tensor<4x1xf32>) outs(%into : tensor<4x16xf32>) {
  ^bb0(%byte: i8, %scale: f32, %out: f32):
    %k = linalg.index 1 : index
    %part = arith.remui %k, %c4 : index
    %places = arith.muli %part, %c2 : index
    %shift = arith.index_cast %places : index to i8
    %moved = arith.shrui %byte, %shift : i8
    %code = arith.andi %moved, %three : i8
    %value = arith.uitofp %code : i8 to f32
    %scaled = arith.mulf %value, %scale : f32
    linalg.yield %scaled : f32
  } -> tensor<4x16xf32>
  %high = linalg.generic {indexing_maps = [affine_map<(n, k) -> (n, k floordiv 8)>, #scales, #plain], iterator_types = ["parallel", "parallel"]} ins(%arg2, %arg3 : tensor<4x2xi8>, tensor<4x1xf32>) outs(%into : tensor<4x16xf32>) {
  ^bb0(%byte: i8, %scale: f32, %out: f32):
    %k = linalg.index 1 : index
    %part = arith.remui %k, %c8 : index
    %shift = arith.index_cast %part : index to i8
    %moved = arith.shrui %byte, %shift : i8
    %code = arith.andi %moved, %one : i8
    %value = arith.uitofp %code : i8 to f32
    %scaled = arith.mulf %value, %scale : f32
    linalg.yield %scaled : f32
  } -> tensor<4x16xf32>
  %weight = linalg.generic {indexing_maps = [#plain, #plain, #plain], iterator_types = ["parallel", "parallel"]} ins(%low, %high : tensor<4x16xf32>, tensor<4x16xf32>) outs(%into : tensor<4x16xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %times = arith.mulf %b, %four : f32
    %sum = arith.addf %a, %times : f32
    linalg.yield %sum : f32
  } -> tensor<4x16xf32>
  %empty = tensor.empty(%n) : tensor<?x4xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x4xf32>) -> tensor<?x4xf32>
  %product = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>] ins(%arg0, %weight : tensor<?x16xf32>, tensor<4x16xf32>) outs(%start : tensor<?x4xf32>) -> tensor<?x4xf32>
  return %product : tensor<?x4xf32>
}
