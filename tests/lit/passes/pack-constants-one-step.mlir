// RUN: tilewright opt %s --pass "pack-constants{vector-bytes=32 vector-registers=16}" | filecheck %s

// A window of one place has loops of one step: columns lie as those of a product do, in panels of three vectors; with three places
// in panels of two.
// CHECK: func.func private @one({{.*}}: tensor<22x1x96x24xf32> {tw.constant, tw.dims = [22, 1, 96, 24], tw.panel = 24 : i64
// CHECK: func.func private @three({{.*}}: tensor<32x3x96x16xf32> {tw.constant, tw.dims = [32, 3, 96, 16], tw.panel = 16 : i64

module {
  func.func private @one(%x: tensor<?x1x96xf32> {tw.dims = ["d0", 1, 96], tw.unit = 2 : i64},
      %w: tensor<512x96x1xf32> {tw.constant, tw.dims = [512, 96, 1], tw.unit = 2 : i64}, %d0: index {tw.dims = ["d0"]})
      -> (tensor<?x512xf32> {tw.dims = ["d0", 512], tw.unit = 1 : i64}) attributes {tw.key = "o", tw.kind = "contraction"} {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty(%d0) : tensor<?x512xf32>
    %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x512xf32>) -> tensor<?x512xf32>
    %y = linalg.generic {indexing_maps = [affine_map<(m, n, t, k) -> (m, t, k)>, affine_map<(m, n, t, k) -> (n, k, t)>,
                                          affine_map<(m, n, t, k) -> (m, n)>],
                         iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
        ins(%x, %w : tensor<?x1x96xf32>, tensor<512x96x1xf32>) outs(%init : tensor<?x512xf32>) {
      ^bb0(%a: f32, %b: f32, %c: f32):
        %p = arith.mulf %a, %b : f32
        %s = arith.addf %c, %p : f32
        linalg.yield %s : f32
    } -> tensor<?x512xf32>
    return %y : tensor<?x512xf32>
  }
  func.func private @three(%x: tensor<?x3x96xf32> {tw.dims = ["d0", 3, 96], tw.unit = 2 : i64},
      %w: tensor<512x96x3xf32> {tw.constant, tw.dims = [512, 96, 3], tw.unit = 2 : i64}, %d0: index {tw.dims = ["d0"]})
      -> (tensor<?x512xf32> {tw.dims = ["d0", 512], tw.unit = 1 : i64}) attributes {tw.key = "t", tw.kind = "contraction"} {
    %zero = arith.constant 0.0 : f32
    %empty = tensor.empty(%d0) : tensor<?x512xf32>
    %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x512xf32>) -> tensor<?x512xf32>
    %y = linalg.generic {indexing_maps = [affine_map<(m, n, t, k) -> (m, t, k)>, affine_map<(m, n, t, k) -> (n, k, t)>,
                                          affine_map<(m, n, t, k) -> (m, n)>],
                         iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
        ins(%x, %w : tensor<?x3x96xf32>, tensor<512x96x3xf32>) outs(%init : tensor<?x512xf32>) {
      ^bb0(%a: f32, %b: f32, %c: f32):
        %p = arith.mulf %a, %b : f32
        %s = arith.addf %c, %p : f32
        linalg.yield %s : f32
    } -> tensor<?x512xf32>
    return %y : tensor<?x512xf32>
  }
  func.func @main(%x: tensor<?x1x96xf32> {tw.dims = ["B", 1, 96], tw.unit = 2 : i64},
      %v: tensor<?x3x96xf32> {tw.dims = ["B", 3, 96], tw.unit = 2 : i64},
      %w: tensor<512x96x1xf32> {tw.constant, tw.dims = [512, 96, 1], tw.unit = 2 : i64},
      %u: tensor<512x96x3xf32> {tw.constant, tw.dims = [512, 96, 3], tw.unit = 2 : i64}, %B: index {tw.dims = ["B"]})
      -> (tensor<?x512xf32> {tw.dims = ["B", 512], tw.unit = 1 : i64}, tensor<?x512xf32> {tw.dims = ["B", 512], tw.unit = 1 : i64}) {
    %y = func.call @one(%x, %w, %B) : (tensor<?x1x96xf32>, tensor<512x96x1xf32>, index) -> tensor<?x512xf32>
    %z = func.call @three(%v, %u, %B) : (tensor<?x3x96xf32>, tensor<512x96x3xf32>, index) -> tensor<?x512xf32>
    return %y, %z : tensor<?x512xf32>, tensor<?x512xf32>
  }
}
