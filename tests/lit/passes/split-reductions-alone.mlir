// RUN: tilewright opt %s --pass "split-reductions{alone=256}" | filecheck %s

// Sums that wait for memory alone have parts of more rows, also of what a product made and of two tensors
// multiplied element by element.
#id = affine_map<(d0, d1) -> (d0, d1)>
#column = affine_map<(d0, d1) -> (d1)>

// CHECK-DAG: #[[LARGE:.+]] = affine_map<(d0, d1) -> (d0 floordiv 256, d1)>

// CHECK-LABEL: func.func @read
// CHECK: linalg.generic {indexing_maps = [#{{.+}}, #[[LARGE]]]
// CHECK: linalg.generic {indexing_maps = [#{{.+}}, #[[LARGE]]]
func.func @read(%x: tensor<?x256xf32> {tw.dims = ["T", 256]}, %g: tensor<?x256xf32> {tw.dims = ["T", 256]}, %w: tensor<256x256xf32> {tw.dims = [256, 256]})
    -> (tensor<?x256xf32>, tensor<256xf32>, tensor<256xf32>) attributes {tw.ranges = {T = [1, 4096, 1]}} {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %T = tensor.dim %x, %c0 : tensor<?x256xf32>
  %e = tensor.empty(%T) : tensor<?x256xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x256xf32>) -> tensor<?x256xf32>
  %n = tensor.empty() : tensor<256xf32>
  %z = linalg.fill ins(%zero : f32) outs(%n : tensor<256xf32>) -> tensor<256xf32>
  %y = linalg.matmul ins(%x, %w : tensor<?x256xf32>, tensor<256x256xf32>) outs(%f : tensor<?x256xf32>) -> tensor<?x256xf32>
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]}
      ins(%y : tensor<?x256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %o : f32
    linalg.yield %r : f32
  } -> tensor<256xf32>
  %m = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %g : tensor<?x256xf32>, tensor<?x256xf32>) outs(%e : tensor<?x256xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %r = arith.mulf %a, %b : f32
    linalg.yield %r : f32
  } -> tensor<?x256xf32>
  %t = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]}
      ins(%m : tensor<?x256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %o : f32
    linalg.yield %r : f32
  } -> tensor<256xf32>
  return %y, %s, %t : tensor<?x256xf32>, tensor<256xf32>, tensor<256xf32>
}
