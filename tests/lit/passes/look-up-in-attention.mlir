// RUN: tilewright opt %s --pass "fuse,fuse-attention,look-up-in-attention" | filecheck %s
// RUN: tilewright opt %s --pass "fuse,fuse-attention" | filecheck %s --check-prefix=APART
// RUN: tilewright opt %s --pass "fuse,fuse-attention,look-up-in-attention{queries=0}" | filecheck %s --check-prefix=APART

#same = affine_map<(n) -> (n)>
#one = affine_map<(n) -> ()>

// Keys and values are halves of rows that %at names: the attention of one query looks them up itself, with both views.
// CHECK-LABEL: func.func @main
// CHECK: attrs = {tw.region = 0 : i64}
// CHECK: tensor.extract
// CHECK: tensor.extract_slice {{.*}}[0, 0] [9, 4] [1, 1] {tw.region = 0 : i64}
// CHECK: tensor.extract
// CHECK: tensor.extract_slice {{.*}}[0, 4] [9, 4] [1, 1] {tw.region = 0 : i64}
// CHECK-NOT: tw.region = 1
// APART-LABEL: func.func @main
// APART: tensor.extract
// APART: tensor.extract_slice {{.*}}[0, 0] [9, 4] [1, 1] :
// APART: attrs = {tw.region = 1 : i64}
func.func @main(%table: tensor<7x8xf32>, %at: tensor<9xindex>, %q: tensor<4xf32>) -> tensor<4xf32> {
  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %ge = tensor.empty() : tensor<9x8xf32>
  %rows = linalg.generic {indexing_maps = [affine_map<(n, c) -> (n)>, affine_map<(n, c) -> (n, c)>],
      iterator_types = ["parallel", "parallel"]} ins(%at : tensor<9xindex>) outs(%ge : tensor<9x8xf32>) {
  ^bb0(%a: index, %o: f32):
    %c = linalg.index 1 : index
    %x = tensor.extract %table[%a, %c] : tensor<7x8xf32>
    linalg.yield %x : f32
  } -> tensor<9x8xf32>
  %k = tensor.extract_slice %rows[0, 0] [9, 4] [1, 1] : tensor<9x8xf32> to tensor<9x4xf32>
  %v = tensor.extract_slice %rows[0, 4] [9, 4] [1, 1] : tensor<9x8xf32> to tensor<9x4xf32>
  %se = tensor.empty() : tensor<9xf32>
  %sf = linalg.fill ins(%zero : f32) outs(%se : tensor<9xf32>) -> tensor<9xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(n, k) -> (k)>, affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n)>],
      iterator_types = ["parallel", "reduction"]} ins(%q, %k : tensor<4xf32>, tensor<9x4xf32>) outs(%sf : tensor<9xf32>) {
  ^bb0(%a: f32, %b: f32, %acc: f32):
    %m = arith.mulf %a, %b : f32
    %t = arith.addf %acc, %m : f32
    linalg.yield %t : f32
  } -> tensor<9xf32>
  %re = tensor.empty() : tensor<f32>
  %rl = linalg.fill ins(%low : f32) outs(%re : tensor<f32>) -> tensor<f32>
  %max = linalg.generic {indexing_maps = [#same, #one], iterator_types = ["reduction"]}
      ins(%s : tensor<9xf32>) outs(%rl : tensor<f32>) {
  ^bb0(%a: f32, %acc: f32):
    %t = arith.maximumf %a, %acc : f32
    linalg.yield %t : f32
  } -> tensor<f32>
  %e = linalg.generic {indexing_maps = [#same, #one, #same], iterator_types = ["parallel"]}
      ins(%s, %max : tensor<9xf32>, tensor<f32>) outs(%se : tensor<9xf32>) {
  ^bb0(%a: f32, %c: f32, %o: f32):
    %d = arith.subf %a, %c : f32
    %t = math.exp %d : f32
    linalg.yield %t : f32
  } -> tensor<9xf32>
  %rz = linalg.fill ins(%zero : f32) outs(%re : tensor<f32>) -> tensor<f32>
  %sum = linalg.generic {indexing_maps = [#same, #one], iterator_types = ["reduction"]}
      ins(%e : tensor<9xf32>) outs(%rz : tensor<f32>) {
  ^bb0(%a: f32, %acc: f32):
    %t = arith.addf %a, %acc : f32
    linalg.yield %t : f32
  } -> tensor<f32>
  %w = linalg.generic {indexing_maps = [#same, #one, #same], iterator_types = ["parallel"]}
      ins(%e, %sum : tensor<9xf32>, tensor<f32>) outs(%se : tensor<9xf32>) {
  ^bb0(%a: f32, %c: f32, %o: f32):
    %t = arith.divf %a, %c : f32
    linalg.yield %t : f32
  } -> tensor<9xf32>
  %oe = tensor.empty() : tensor<4xf32>
  %of = linalg.fill ins(%zero : f32) outs(%oe : tensor<4xf32>) -> tensor<4xf32>
  %out = linalg.generic {indexing_maps = [affine_map<(e, n) -> (n)>, affine_map<(e, n) -> (n, e)>, affine_map<(e, n) -> (e)>],
      iterator_types = ["parallel", "reduction"]} ins(%w, %v : tensor<9xf32>, tensor<9x4xf32>) outs(%of : tensor<4xf32>) {
  ^bb0(%a: f32, %b: f32, %acc: f32):
    %m = arith.mulf %a, %b : f32
    %t = arith.addf %acc, %m : f32
    linalg.yield %t : f32
  } -> tensor<4xf32>
  return %out : tensor<4xf32>
}
