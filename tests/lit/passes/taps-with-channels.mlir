// RUN: tilewright opt %s --pass "taps-with-channels" | filecheck %s
// RUN: tilewright opt %s --pass "taps-with-channels{channels=2}" | filecheck %s --check-prefix=MORE
// RUN: tilewright opt %s --pass "taps-with-channels{bits=8}" | filecheck %s --check-prefix=MORE

// Windows of 7 x 7 places of 3 colours, two apart: sums over 7 rows of 21 values side by side.
// CHECK: affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1 * 2 + d4, d2 * 6 + d5)>
// CHECK: affine_map<(d0, d1, d2, d3, d4, d5) -> (d4, d5, d3)>
// CHECK-LABEL: func.func @main
// CHECK-DAG: tensor.collapse_shape %arg0 {{.*}} : tensor<?x230x230x3xbf16> into tensor<?x230x690xbf16>
// CHECK-DAG: linalg.generic {{.*}} ins(%arg1 : tensor<64x3x7x7xbf16>) outs({{.*}} : tensor<7x7x3x64xbf16>) attrs = {tw.copy}
// CHECK: tensor.collapse_shape {{.*}} : tensor<7x7x3x64xbf16> into tensor<7x21x64xbf16>
// CHECK: iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]

// MORE-LABEL: func.func @main
// MORE-NOT: tensor.collapse_shape
#image = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1 * 2 + d4, d2 * 2 + d5, d6)>
#filters = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d3, d6, d4, d5)>
#result = affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1, d2, d3)>
func.func @main(%x: tensor<?x230x230x3xbf16> {tw.dims = ["B", 230, 230, 3]}, %w: tensor<64x3x7x7xbf16>,
    %z: tensor<?x112x112x64xf32> {tw.dims = ["B", 112, 112, 64]})
    -> tensor<?x112x112x64xf32> {
  %y = linalg.generic {indexing_maps = [#image, #filters, #result],
    iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
    ins(%x, %w : tensor<?x230x230x3xbf16>, tensor<64x3x7x7xbf16>) outs(%z : tensor<?x112x112x64xf32>) {
  ^bb0(%a: bf16, %b: bf16, %t: f32):
    %c = arith.extf %a : bf16 to f32
    %d = arith.extf %b : bf16 to f32
    %m = arith.mulf %c, %d : f32
    %s = arith.addf %t, %m : f32
    linalg.yield %s : f32
  } -> tensor<?x112x112x64xf32>
  return %y : tensor<?x112x112x64xf32>
}
