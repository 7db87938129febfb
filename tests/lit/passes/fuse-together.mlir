// RUN: tilewright opt %s --pass "split-reductions{elements=64 rows=2 parts=64},fuse{together=false}" | filecheck %s
// RUN: tilewright opt %s --pass "split-reductions{elements=64 rows=2 parts=64},fuse" | filecheck %s --check-prefix=HOST

// Parts of both sums are one kernel that reads %y once. What joins them is one launch where each kernel is one, as on a GPU.
// CHECK-LABEL: func.func @main
// CHECK: tw.region = 0
// CHECK: tw.region = 1
// CHECK: tw.region = 0
// CHECK: tw.region = 1
// CHECK-NOT: tw.region = 2
// HOST-LABEL: func.func @main
// HOST: tw.region = 2
#id = affine_map<(d0, d1) -> (d0, d1)>
#col = affine_map<(d0, d1) -> (d1)>
func.func @main(%x: tensor<?x32xf32> {tw.dims = ["T", 32]}, %y: tensor<?x32xf32> {tw.dims = ["T", 32]})
    -> (tensor<32xf32>, tensor<32xf32>) attributes {tw.ranges = {T = [1, 128, 1]}} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<32xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<32xf32>) -> tensor<32xf32>
  %a = linalg.generic {indexing_maps = [#id, #id, #col], iterator_types = ["reduction", "parallel"]}
      ins(%x, %y : tensor<?x32xf32>, tensor<?x32xf32>) outs(%f : tensor<32xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %0 = arith.mulf %p, %q : f32
    %1 = arith.addf %0, %o : f32
    linalg.yield %1 : f32
  } -> tensor<32xf32>
  %b = linalg.generic {indexing_maps = [#id, #col], iterator_types = ["reduction", "parallel"]}
      ins(%y : tensor<?x32xf32>) outs(%f : tensor<32xf32>) {
  ^bb0(%q: f32, %o: f32):
    %0 = arith.addf %q, %o : f32
    linalg.yield %0 : f32
  } -> tensor<32xf32>
  return %a, %b : tensor<32xf32>, tensor<32xf32>
}
