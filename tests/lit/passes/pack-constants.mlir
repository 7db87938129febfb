// RUN: tilewright opt %s --pass "pack-constants" | filecheck %s
// RUN: not tilewright opt %s --pass "pack-constants{bogus=1}" 2>&1 | filecheck %s --check-prefix=BAD

// BAD: pack-constants has no option 'bogus'

// The weight is read in panels of 48 columns; @main gets the panels as a new constant that says where they come from.
// CHECK: affine_map<(d0, d1, d2) -> (d1 floordiv 48, d2, d1 mod 48)>
// CHECK: func.func private @matmul({{.*}}: tensor<48x768x48xf32> {tw.constant, tw.dims = [48, 768, 48], tw.panel = 48 : i64, tw.unit = 2 : i64}
// CHECK-NOT: linalg.matmul
// CHECK: func.func @main({{.*}}tensor<48x768x48xf32> {tw.constant, tw.dims = [48, 768, 48], tw.pack = [1, 48, 1, 0]})
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
  func.func @main(%x: tensor<?x768xf32> {tw.dims = ["M", 768]}, %w: tensor<768x2304xf32> {tw.constant, tw.dims = [768, 2304]})
      -> tensor<?x2304xf32> attributes {tw.ranges = {M = [1, 128, 1]}} {
    %c0 = arith.constant 0 : index
    %m = tensor.dim %x, %c0 : tensor<?x768xf32>
    %y = call @matmul(%x, %w, %m) : (tensor<?x768xf32>, tensor<768x2304xf32>, index) -> tensor<?x2304xf32>
    return %y : tensor<?x2304xf32>
  }
}
