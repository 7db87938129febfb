// RUN: tilewright opt %s --pass "fuse,fuse-attention" | filecheck %s
// RUN: tilewright opt %s --pass "fuse" | filecheck %s --check-prefix=APART
// RUN: tilewright opt %s --pass "fuse,fuse-attention{operands=f16,bf16}" | filecheck %s --check-prefix=APART
// RUN: tilewright opt %s --pass "fuse,fuse-attention{operands=f32 depth=64 columns=64}" | filecheck %s
// RUN: tilewright opt %s --pass "fuse,fuse-attention{depth=1}" | filecheck %s --check-prefix=APART
// RUN: not tilewright opt %s --pass "fuse-attention{operands=i8}" 2>&1 | filecheck %s --check-prefix=TYPES
// TYPES: fuse-attention: operands='i8'; wanted some of f16, bf16, f32, f64

#q = affine_map<(b, m, n, k) -> (b, m, k)>
#k = affine_map<(b, m, n, k) -> (b, n, k)>
#s = affine_map<(b, m, n, k) -> (b, m, n)>
#v = affine_map<(b, m, e, n) -> (b, n, e)>
#p = affine_map<(b, m, e, n) -> (b, m, n)>
#o = affine_map<(b, m, e, n) -> (b, m, e)>

// Scores, softmax and mixing are one region; the reshape of the scores between two of them moves to the operands.
// CHECK-LABEL: func.func @main
// CHECK: tensor.expand_shape %arg0
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction"]{{.*}} attrs = {tw.region = 0 : i64}
// CHECK-COUNT-6: attrs = {tw.region = 0 : i64}
// CHECK-NOT: tw.region = 1
// APART-LABEL: func.func @main
// APART: attrs = {tw.region = 0 : i64}
// APART: tensor.expand_shape
// APART-COUNT-5: attrs = {tw.region = 1 : i64}
// APART: tensor.collapse_shape
// APART: attrs = {tw.region = 2 : i64}
func.func @main(%q: tensor<6x8x4xf32>, %k: tensor<6x9x4xf32>, %v: tensor<6x9x5xf32>) -> tensor<6x8x5xf32> {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %se = tensor.empty() : tensor<6x8x9xf32>
  %sf = linalg.fill ins(%zero : f32) outs(%se : tensor<6x8x9xf32>) -> tensor<6x8x9xf32>
  %s = linalg.generic {indexing_maps = [#q, #k, #s], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%q, %k : tensor<6x8x4xf32>, tensor<6x9x4xf32>) outs(%sf : tensor<6x8x9xf32>) {
  ^bb0(%a: f32, %b: f32, %acc: f32):
    %m = arith.mulf %a, %b : f32
    %t = arith.addf %acc, %m : f32
    linalg.yield %t : f32
  } -> tensor<6x8x9xf32>
  %x = tensor.expand_shape %s [[0, 1], [2], [3]] output_shape [2, 3, 8, 9] : tensor<6x8x9xf32> into tensor<2x3x8x9xf32>
  %re = tensor.empty() : tensor<2x3x8xf32>
  %xe = tensor.empty() : tensor<2x3x8x9xf32>
  %rl = linalg.fill ins(%low : f32) outs(%re : tensor<2x3x8xf32>) -> tensor<2x3x8xf32>
  %max = linalg.generic {indexing_maps = [affine_map<(a, b, m, n) -> (a, b, m, n)>, affine_map<(a, b, m, n) -> (a, b, m)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x : tensor<2x3x8x9xf32>) outs(%rl : tensor<2x3x8xf32>) {
  ^bb0(%a: f32, %acc: f32):
    %t = arith.maximumf %a, %acc : f32
    linalg.yield %t : f32
  } -> tensor<2x3x8xf32>
  %d = linalg.generic {indexing_maps = [affine_map<(a, b, m, n) -> (a, b, m, n)>, affine_map<(a, b, m, n) -> (a, b, m)>,
      affine_map<(a, b, m, n) -> (a, b, m, n)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%x, %max : tensor<2x3x8x9xf32>, tensor<2x3x8xf32>) outs(%xe : tensor<2x3x8x9xf32>) {
  ^bb0(%a: f32, %c: f32, %acc: f32):
    %t = arith.subf %a, %c : f32
    linalg.yield %t : f32
  } -> tensor<2x3x8x9xf32>
  %e = linalg.generic {indexing_maps = [affine_map<(a, b, m, n) -> (a, b, m, n)>, affine_map<(a, b, m, n) -> (a, b, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%d : tensor<2x3x8x9xf32>) outs(%xe : tensor<2x3x8x9xf32>) {
  ^bb0(%a: f32, %acc: f32):
    %t = math.exp %a : f32
    linalg.yield %t : f32
  } -> tensor<2x3x8x9xf32>
  %rz = linalg.fill ins(%zero : f32) outs(%re : tensor<2x3x8xf32>) -> tensor<2x3x8xf32>
  %sum = linalg.generic {indexing_maps = [affine_map<(a, b, m, n) -> (a, b, m, n)>, affine_map<(a, b, m, n) -> (a, b, m)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%e : tensor<2x3x8x9xf32>) outs(%rz : tensor<2x3x8xf32>) {
  ^bb0(%a: f32, %acc: f32):
    %t = arith.addf %a, %acc : f32
    linalg.yield %t : f32
  } -> tensor<2x3x8xf32>
  %w = linalg.generic {indexing_maps = [affine_map<(a, b, m, n) -> (a, b, m, n)>, affine_map<(a, b, m, n) -> (a, b, m)>,
      affine_map<(a, b, m, n) -> (a, b, m, n)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%e, %sum : tensor<2x3x8x9xf32>, tensor<2x3x8xf32>) outs(%xe : tensor<2x3x8x9xf32>) {
  ^bb0(%a: f32, %c: f32, %acc: f32):
    %t = arith.divf %a, %c : f32
    linalg.yield %t : f32
  } -> tensor<2x3x8x9xf32>
  %flat = tensor.collapse_shape %w [[0, 1], [2], [3]] : tensor<2x3x8x9xf32> into tensor<6x8x9xf32>
  %oe = tensor.empty() : tensor<6x8x5xf32>
  %of = linalg.fill ins(%zero : f32) outs(%oe : tensor<6x8x5xf32>) -> tensor<6x8x5xf32>
  %out = linalg.generic {indexing_maps = [#p, #v, #o], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%flat, %v : tensor<6x8x9xf32>, tensor<6x9x5xf32>) outs(%of : tensor<6x8x5xf32>) {
  ^bb0(%a: f32, %b: f32, %acc: f32):
    %m = arith.mulf %a, %b : f32
    %t = arith.addf %acc, %m : f32
    linalg.yield %t : f32
  } -> tensor<6x8x5xf32>
  return %out : tensor<6x8x5xf32>
}
