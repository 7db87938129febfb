// RUN: tilewright opt %s --pass "split-reductions{many=3 near=65536}" | filecheck %s
// RUN: tilewright opt %s --pass "split-reductions{many=3 near=65535}" | filecheck %s --check-prefix=PARTS
// RUN: tilewright opt %s --pass "split-reductions{many=4 near=65536}" | filecheck %s --check-prefix=PARTS

// Sums of three tensors that fit a cache, two of which are joined, are a thread's own work each.
// CHECK-NOT: floordiv
// CHECK-LABEL: func.func @many
// CHECK: return
// PARTS: floordiv
// PARTS-LABEL: func.func @many
func.func @many(%x0: tensor<256x256xf32>, %x1: tensor<256x256xf32>, %x2: tensor<256x256xf32>) -> (tensor<f32>, tensor<f32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<f32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<f32>) -> tensor<f32>
  %a0 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> ()>],
                       iterator_types = ["reduction", "reduction"]} ins(%x0 : tensor<256x256xf32>) outs(%f : tensor<f32>) {
  ^bb0(%v: f32, %o: f32):
    %r = arith.addf %o, %v : f32
    linalg.yield %r : f32
  } -> tensor<f32>
  %a1 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> ()>],
                       iterator_types = ["reduction", "reduction"]} ins(%x1 : tensor<256x256xf32>) outs(%f : tensor<f32>) {
  ^bb0(%v: f32, %o: f32):
    %r = arith.addf %o, %v : f32
    linalg.yield %r : f32
  } -> tensor<f32>
  %a2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> ()>],
                       iterator_types = ["reduction", "reduction"]} ins(%x2 : tensor<256x256xf32>) outs(%f : tensor<f32>) {
  ^bb0(%v: f32, %o: f32):
    %r = arith.addf %o, %v : f32
    linalg.yield %r : f32
  } -> tensor<f32>
  %s = linalg.generic {indexing_maps = [affine_map<() -> ()>, affine_map<() -> ()>, affine_map<() -> ()>], iterator_types = []}
      ins(%a0, %a1 : tensor<f32>, tensor<f32>) outs(%e : tensor<f32>) {
  ^bb0(%v: f32, %w: f32, %o: f32):
    %r = arith.addf %v, %w : f32
    linalg.yield %r : f32
  } -> tensor<f32>
  return %s, %a2 : tensor<f32>, tensor<f32>
}
