// RUN: tilewright opt %s --pass "channels-last" | filecheck %s

// Filters [c, f, row, column], as transposed convolutions have them, are read as they lie. The window of the image and the phases
// that are joined have their channels last, too.
// CHECK: #[[FILTERS:.+]] = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d6, d3, d4, d5)>
// CHECK-LABEL: func.func @main
// CHECK: %[[X:.+]] = linalg.generic {{.*}} ins(%arg0 : tensor<?x32x9x9xf32>) outs({{.*}} : tensor<?x9x9x32xf32>) attrs = {tw.copy}
// CHECK: %[[A:.+]] = linalg.generic {indexing_maps = [{{.*}}, #[[FILTERS]], {{.*}}]{{.*}} ins(%[[X]], %arg1 : tensor<?x9x9x32xf32>, tensor<32x16x2x2xf32>)
// CHECK: %[[W:.+]] = tensor.extract_slice %[[X]][0, 0, 1, 0] [{{.*}}, 9, 8, 32]
// CHECK: %[[B:.+]] = linalg.generic {indexing_maps = [{{.*}}, #[[FILTERS]], {{.*}}]{{.*}} ins(%[[W]], %arg2 : tensor<?x9x8x32xf32>, tensor<32x16x2x1xf32>)
// CHECK: %[[P:.+]] = tensor.expand_shape %[[A]] {{.*}} into tensor<?x8x8x1x16xf32>
// CHECK: %[[Q:.+]] = tensor.expand_shape %[[B]] {{.*}} into tensor<?x8x8x1x16xf32>
// CHECK: tensor.concat dim(3) %[[P]], %[[Q]]
#image = affine_map<(n, f, h, w, c, i, j) -> (n, c, h + i, w + j)>
#filters = affine_map<(n, f, h, w, c, i, j) -> (c, f, i, j)>
#result = affine_map<(n, f, h, w, c, i, j) -> (n, f, h, w)>
func.func @main(%arg0: tensor<?x32x9x9xf32> {tw.dims = ["B", 32, 9, 9]}, %arg1: tensor<32x16x2x2xf32>, %arg2: tensor<32x16x2x1xf32>) -> tensor<?x16x8x16xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %b = tensor.dim %arg0, %c0 : tensor<?x32x9x9xf32>
  %e = tensor.empty(%b) : tensor<?x16x8x8xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x16x8x8xf32>) -> tensor<?x16x8x8xf32>
  %x = linalg.generic {indexing_maps = [#image, #filters, #result], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
    ins(%arg0, %arg1 : tensor<?x32x9x9xf32>, tensor<32x16x2x2xf32>) outs(%z : tensor<?x16x8x8xf32>) {
  ^bb0(%in: f32, %w: f32, %out: f32):
    %m = arith.mulf %in, %w : f32
    %s = arith.addf %out, %m : f32
    linalg.yield %s : f32
  } -> tensor<?x16x8x8xf32>
  %part = tensor.extract_slice %arg0[0, 0, 0, 1] [%b, 32, 9, 8] [1, 1, 1, 1] : tensor<?x32x9x9xf32> to tensor<?x32x9x8xf32>
  %y = linalg.generic {indexing_maps = [#image, #filters, #result], iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
    ins(%part, %arg2 : tensor<?x32x9x8xf32>, tensor<32x16x2x1xf32>) outs(%z : tensor<?x16x8x8xf32>) {
  ^bb0(%in: f32, %w: f32, %out: f32):
    %m = arith.mulf %in, %w : f32
    %s = arith.addf %out, %m : f32
    linalg.yield %s : f32
  } -> tensor<?x16x8x8xf32>
  %p = tensor.expand_shape %x [[0], [1], [2], [3, 4]] output_shape [%b, 16, 8, 8, 1] : tensor<?x16x8x8xf32> into tensor<?x16x8x8x1xf32>
  %q = tensor.expand_shape %y [[0], [1], [2], [3, 4]] output_shape [%b, 16, 8, 8, 1] : tensor<?x16x8x8xf32> into tensor<?x16x8x8x1xf32>
  %j = tensor.concat dim(4) %p, %q : (tensor<?x16x8x8x1xf32>, tensor<?x16x8x8x1xf32>) -> tensor<?x16x8x8x2xf32>
  %r = tensor.collapse_shape %j [[0], [1], [2], [3, 4]] : tensor<?x16x8x8x2xf32> into tensor<?x16x8x16xf32>
  return %r : tensor<?x16x8x16xf32>
}
