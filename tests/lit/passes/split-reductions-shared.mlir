// RUN: tilewright opt %s --pass "split-reductions{alone=256}" | filecheck %s

// Where sums along the rows are computed of the same rows, threads share these in parts of the usual size.
#id = affine_map<(d0, d1) -> (d0, d1)>
#column = affine_map<(d0, d1) -> (d1)>
#row = affine_map<(d0, d1) -> (d0)>

// CHECK-DAG: #[[PART:.+]] = affine_map<(d0, d1) -> (d0 floordiv 64, d1)>
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic {indexing_maps = [#{{.+}}, #[[PART]]]
func.func @main(%x: tensor<?x256xf32> {tw.dims = ["T", 256]}) -> (tensor<?xf32>, tensor<256xf32>) attributes {tw.ranges = {T = [1, 4096, 1]}} {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %T = tensor.dim %x, %c0 : tensor<?x256xf32>
  %e = tensor.empty(%T) : tensor<?xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  %n = tensor.empty() : tensor<256xf32>
  %z = linalg.fill ins(%zero : f32) outs(%n : tensor<256xf32>) -> tensor<256xf32>
  %r = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<?x256xf32>) outs(%f : tensor<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %v = arith.addf %a, %o : f32
    linalg.yield %v : f32
  } -> tensor<?xf32>
  %s = linalg.generic {indexing_maps = [#id, #column], iterator_types = ["reduction", "parallel"]}
      ins(%x : tensor<?x256xf32>) outs(%z : tensor<256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %v = arith.addf %a, %o : f32
    linalg.yield %v : f32
  } -> tensor<256xf32>
  return %r, %s : tensor<?xf32>, tensor<256xf32>
}
