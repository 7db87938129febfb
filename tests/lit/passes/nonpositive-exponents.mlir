// RUN: tilewright opt %s --pass "nonpositive-exponents" | filecheck %s

// A decay by a step above 0 and a rate below: the signs come from the operations in front. What may be above 0 stays as it is.
// CHECK-LABEL: func.func @main
// CHECK: math.exp %{{.*}} : f32
// CHECK: linalg.generic
// CHECK: arith.mulf
// CHECK-NEXT: math.exp %{{.*}} {tw.nonpositive} : f32
// CHECK: %[[SQUARE:.*]] = arith.mulf
// CHECK: %[[BELOW:.*]] = arith.negf %[[SQUARE]]
// CHECK-NEXT: math.exp2 %[[BELOW]] {tw.nonpositive} : f32
// CHECK: math.exp %{{.*}} : f32
#same = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d1)>
func.func @main(%d: tensor<?x4xf32> {tw.dims = ["N", 4]}, %a: tensor<4xf32> {tw.dims = [4]}) -> (tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>) attributes {tw.ranges = {N = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %one = arith.constant 1.0 : f32
  %n = tensor.dim %d, %c0 : tensor<?x4xf32>
  %empty = tensor.empty(%n) : tensor<?x4xf32>
  %few = tensor.empty() : tensor<4xf32>
  %rate = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a : tensor<4xf32>) outs(%few : tensor<4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %e = math.exp %in : f32
    %m = arith.negf %e : f32
    linalg.yield %m : f32
  } -> tensor<4xf32>
  %made:3 = linalg.generic {indexing_maps = [#same, #row, #same, #same, #same], iterator_types = ["parallel", "parallel"]} ins(%d, %rate : tensor<?x4xf32>, tensor<4xf32>) outs(%empty, %empty, %empty : tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>) {
  ^bb0(%x: f32, %r: f32, %o0: f32, %o1: f32, %o2: f32):
    %size = math.absf %x : f32
    %step = arith.addf %size, %one : f32
    %product = arith.mulf %step, %r : f32
    %decay = math.exp %product : f32
    %square = arith.mulf %x, %x : f32
    %below = arith.negf %square : f32
    %bell = math.exp2 %below : f32
    %other = arith.mulf %x, %r : f32
    %any = math.exp %other : f32
    linalg.yield %decay, %bell, %any : f32, f32, f32
  } -> (tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>)
  return %made#0, %made#1, %made#2 : tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>
}

// The argument is made in two operations: of (-x) x and of (-x) x', at another place.
// CHECK-LABEL: func.func @gauss
// CHECK: math.exp %{{.*}} {tw.nonpositive} : f32
// CHECK: linalg.generic
// CHECK-NOT: tw.nonpositive
// CHECK: return
#turned = affine_map<(d0, d1) -> (d1, d0)>
func.func @gauss(%x: tensor<4x4xf32> {tw.dims = [4, 4]}) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {tw.ranges = {}} {
  %empty = tensor.empty() : tensor<4x4xf32>
  %minus = arith.constant -0.5 : f32
  %scaled = linalg.generic {indexing_maps = [#same, #same], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<4x4xf32>) outs(%empty : tensor<4x4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %m = arith.mulf %in, %minus : f32
    linalg.yield %m : f32
  } -> tensor<4x4xf32>
  %bell = linalg.generic {indexing_maps = [#same, #same, #same], iterator_types = ["parallel", "parallel"]} ins(%scaled, %x : tensor<4x4xf32>, tensor<4x4xf32>) outs(%empty : tensor<4x4xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %m = arith.mulf %a, %b : f32
    %e = math.exp %m : f32
    linalg.yield %e : f32
  } -> tensor<4x4xf32>
  %any = linalg.generic {indexing_maps = [#same, #turned, #same], iterator_types = ["parallel", "parallel"]} ins(%scaled, %x : tensor<4x4xf32>, tensor<4x4xf32>) outs(%empty : tensor<4x4xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %m = arith.mulf %a, %b : f32
    %e = math.exp %m : f32
    linalg.yield %e : f32
  } -> tensor<4x4xf32>
  return %bell, %any : tensor<4x4xf32>, tensor<4x4xf32>
}
