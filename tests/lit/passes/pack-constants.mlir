// RUN: tilewright opt %s --pass "pack-constants" | filecheck %s
// RUN: tilewright opt %s --pass "pack-constants{bf16-pairs=true}" | filecheck %s --check-prefix=PAIRS
// RUN: tilewright opt %s --pass "pack-constants{vector-bytes=32 vector-registers=16}" | filecheck %s --check-prefix=AVX2
// RUN: tilewright opt %s --pass "pack-constants{last-cache=314572800}" | filecheck %s --check-prefix=FAR


// The weight is read in panels of 48 columns; @main gets the panels as a new constant that says where they come from.
// CHECK: affine_map<(d0, d1, d2) -> (d1 floordiv 48, d2, d1 mod 48)>
// CHECK: func.func private @matmul({{.*}}: tensor<48x768x48xf32> {tw.constant, tw.dims = [48, 768, 48], tw.panel = 48 : i64, tw.unit = 2 : i64}
// CHECK-NOT: linalg.matmul
// CHECK: func.func @main({{.*}}tensor<48x768x48xf32> {tw.constant, tw.dims = [48, 768, 48], tw.pack = [1, 48, 1, 1, 0]}

// Two bf16 of k lie side by side where the target multiplies pairs; f32 stays as it is.
// PAIRS: affine_map<(d0, d1, d2) -> (d1 floordiv 48, d2 floordiv 2, d1 mod 48, d2 mod 2)>
// PAIRS: func.func private @matmul({{.*}}: tensor<48x768x48xf32>
// PAIRS: func.func private @narrow({{.*}}: tensor<1x4x48x2xbf16> {tw.constant, tw.dims = [1, 4, 48, 2], tw.panel = 48 : i64, tw.unit = 3 : i64}
// PAIRS: func.func @main({{.*}}tensor<1x4x48x2xbf16> {tw.constant, tw.dims = [1, 4, 48, 2], tw.pack = [3, 48, 2, 1, 0]})

// With 16 registers, blocks of 4 x 3 have fewer loads than those of 6 x 2.
// AVX2: func.func private @matmul({{.*}}: tensor<96x768x24xf32> {tw.constant, tw.dims = [96, 768, 24], tw.panel = 24 : i64

// From a distant last cache, panels of two vectors, for blocks of the most rows.
// FAR: func.func private @matmul({{.*}}: tensor<72x768x32xf32> {tw.constant, tw.dims = [72, 768, 32], tw.panel = 32 : i64

module {
  func.func private @matmul(%x: tensor<?x768xf32> {tw.dims = ["d0", 768], tw.unit = 1 : i64},
      %w: tensor<768x2304xf32> {tw.constant, tw.dims = [768, 2304], tw.unit = 1 : i64}, %d0: index {tw.dims = ["d0"]})
      -> (tensor<?x2304xf32> {tw.dims = ["d0", 2304], tw.unit = 1 : i64}) attributes {tw.key = "k", tw.kind = "contraction"} {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty(%d0) : tensor<?x2304xf32>
    %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x2304xf32>) -> tensor<?x2304xf32>
    %y = linalg.matmul ins(%x, %w : tensor<?x768xf32>, tensor<768x2304xf32>) outs(%init : tensor<?x2304xf32>) -> tensor<?x2304xf32>
    return %y : tensor<?x2304xf32>
  }
  func.func private @narrow(%x: tensor<?x7xbf16> {tw.dims = ["d0", 7], tw.unit = 1 : i64},
      %w: tensor<7x48xbf16> {tw.constant, tw.dims = [7, 48], tw.unit = 1 : i64}, %d0: index {tw.dims = ["d0"]})
      -> (tensor<?x48xbf16> {tw.dims = ["d0", 48], tw.unit = 1 : i64}) attributes {tw.key = "n", tw.kind = "contraction"} {
    %zero = arith.constant 0.0 : bf16
    %empty = tensor.empty(%d0) : tensor<?x48xbf16>
    %init = linalg.fill ins(%zero : bf16) outs(%empty : tensor<?x48xbf16>) -> tensor<?x48xbf16>
    %y = linalg.matmul ins(%x, %w : tensor<?x7xbf16>, tensor<7x48xbf16>) outs(%init : tensor<?x48xbf16>) -> tensor<?x48xbf16>
    return %y : tensor<?x48xbf16>
  }
  func.func @main(%x: tensor<?x768xf32> {tw.dims = ["M", 768]}, %w: tensor<768x2304xf32> {tw.constant, tw.dims = [768, 2304]},
                  %a: tensor<?x7xbf16> {tw.dims = ["M", 7]}, %b: tensor<7x48xbf16> {tw.constant, tw.dims = [7, 48]})
      -> (tensor<?x2304xf32>, tensor<?x48xbf16>) attributes {tw.ranges = {M = [1, 128, 1]}} {
    %c0 = arith.constant 0 : index
    %m = tensor.dim %x, %c0 : tensor<?x768xf32>
    %y = call @matmul(%x, %w, %m) : (tensor<?x768xf32>, tensor<768x2304xf32>, index) -> tensor<?x2304xf32>
    %z = call @narrow(%a, %b, %m) : (tensor<?x7xbf16>, tensor<7x48xbf16>, index) -> tensor<?x48xbf16>
    return %y, %z : tensor<?x2304xf32>, tensor<?x48xbf16>
  }
}
