// RUN: tilewright opt %s --pass "channels-last" | filecheck %s

// A convolution of each channel by itself whose result is written channels last reads its image and its filters so, too.
// CHECK: #[[READ:.+]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1 + d4, d2 + d5, d3)>
// CHECK: #[[FILTER:.+]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d4, d5, d3)>
// CHECK: #[[WRITTEN:.+]] = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2, d3)>
// CHECK-LABEL: func.func @first
// CHECK: linalg.generic {{.*}} ins(%{{.+}} : tensor<2x32x16x16xf32>) outs(%{{.+}} : tensor<2x16x16x32xf32>) attrs =  {tw.copy}
// CHECK: %[[FILTERS:.+]] = linalg.generic {{.*}} ins(%{{.+}} : tensor<32x3x3xf32>) outs(%{{.+}} : tensor<3x3x32xf32>)
// CHECK: linalg.generic {indexing_maps = [#[[READ]], #[[FILTER]], #[[WRITTEN]]]{{.*}} ins(%{{.+}}, %{{.+}} : tensor<2x16x16x32xf32>, tensor<3x3x32xf32>) outs(%{{.+}} : tensor<2x14x14x32xf32>)
func.func @first(%x: tensor<2x32x14x14xf32>, %w: tensor<32x3x3xf32>, %o: tensor<2x14x14x32xf32>) -> tensor<2x14x14x32xf32> {
  %zero = arith.constant 0.0 : f32
  %p = tensor.pad %x low[0, 0, 1, 1] high[0, 0, 1, 1] {
  ^bb0(%i: index, %j: index, %k: index, %l: index):
    tensor.yield %zero : f32
  } : tensor<2x32x14x14xf32> to tensor<2x32x16x16xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(n, c, h, w, i, j) -> (n, c, h + i, w + j)>,
                                        affine_map<(n, c, h, w, i, j) -> (c, i, j)>,
                                        affine_map<(n, c, h, w, i, j) -> (n, h, w, c)>],
                       iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]}
    ins(%p, %w : tensor<2x32x16x16xf32>, tensor<32x3x3xf32>) outs(%o : tensor<2x14x14x32xf32>) {
  ^bb0(%a: f32, %b: f32, %s: f32):
    %m = arith.mulf %a, %b : f32
    %r = arith.addf %s, %m : f32
    linalg.yield %r : f32
  } -> tensor<2x14x14x32xf32>
  return %y : tensor<2x14x14x32xf32>
}

// So does one whose image has its channels last already; nothing moves but the filters.
// CHECK-LABEL: func.func @last
// CHECK: linalg.generic {{.*}} ins(%{{.+}} : tensor<32x3x3xf32>) outs(%{{.+}} : tensor<3x3x32xf32>)
// CHECK: linalg.generic {indexing_maps = [#[[READ]], #[[FILTER]], #[[WRITTEN]]]{{.*}} ins(%arg0, %{{.+}} : tensor<2x16x16x32xf32>, tensor<3x3x32xf32>)
func.func @last(%x: tensor<2x16x16x32xf32>, %w: tensor<32x3x3xf32>, %o: tensor<2x14x14x32xf32>) -> tensor<2x14x14x32xf32> {
  %y = linalg.generic {indexing_maps = [affine_map<(n, c, h, w, i, j) -> (n, h + i, w + j, c)>,
                                        affine_map<(n, c, h, w, i, j) -> (c, i, j)>,
                                        affine_map<(n, c, h, w, i, j) -> (n, h, w, c)>],
                       iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]}
    ins(%x, %w : tensor<2x16x16x32xf32>, tensor<32x3x3xf32>) outs(%o : tensor<2x14x14x32xf32>) {
  ^bb0(%a: f32, %b: f32, %s: f32):
    %m = arith.mulf %a, %b : f32
    %r = arith.addf %s, %m : f32
    linalg.yield %r : f32
  } -> tensor<2x14x14x32xf32>
  return %y : tensor<2x14x14x32xf32>
}
