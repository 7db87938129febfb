// RUN: tilewright opt %s --pass "split-reductions" | filecheck %s

// A reduction down the rows that reads the result of another, as the place of the largest element does: both are done in parts.
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic {{.*}} outs(%{{.+}} : tensor<?x1000xf32>)
// CHECK: %[[LARGEST:.+]] = linalg.generic {{.*}} iterator_types = ["reduction", "parallel"]} {{.*}} outs(%{{.+}} : tensor<1000xf32>)
// CHECK: linalg.generic {{.*}} ins(%{{.+}}, %[[LARGEST]], %{{.+}} : tensor<?x1000xf32>, tensor<1000xf32>, tensor<?xi32>) outs(%{{.+}} : tensor<?x1000xi32>)
// CHECK: linalg.generic {{.*}} iterator_types = ["reduction", "parallel"]} {{.*}} outs(%{{.+}} : tensor<1000xi32>)
#all = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#column = affine_map<(d0, d1) -> (d1)>
func.func @main(%x: tensor<?x1000xf32> {tw.dims = ["T", 1000]}, %i: tensor<?xi32> {tw.dims = ["T"]}) -> tensor<1000xi32> attributes {tw.ranges = {T = [1, 4096, 1]}} {
  %least = arith.constant 0xFF800000 : f32
  %none = arith.constant 2147483647 : i32
  %e = tensor.empty() : tensor<1000xf32>
  %f = linalg.fill ins(%least : f32) outs(%e : tensor<1000xf32>) -> tensor<1000xf32>
  %m = linalg.generic {indexing_maps = [#all, #column], iterator_types = ["reduction", "parallel"]} ins(%x : tensor<?x1000xf32>) outs(%f : tensor<1000xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.maximumf %o, %a : f32
    linalg.yield %r : f32
  } -> tensor<1000xf32>
  %e1 = tensor.empty() : tensor<1000xi32>
  %f1 = linalg.fill ins(%none : i32) outs(%e1 : tensor<1000xi32>) -> tensor<1000xi32>
  %n = linalg.generic {indexing_maps = [#all, #column, #row, #column], iterator_types = ["reduction", "parallel"]} ins(%x, %m, %i : tensor<?x1000xf32>, tensor<1000xf32>, tensor<?xi32>) outs(%f1 : tensor<1000xi32>) {
  ^bb0(%a: f32, %b: f32, %at: i32, %o: i32):
    %c = arith.cmpf oeq, %a, %b : f32
    %s = arith.select %c, %at, %none : i32
    %r = arith.minsi %o, %s : i32
    linalg.yield %r : i32
  } -> tensor<1000xi32>
  return %n : tensor<1000xi32>
}
