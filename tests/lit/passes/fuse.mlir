// RUN: tilewright opt %s --pass "fuse" | filecheck %s
// RUN: tilewright opt %s --pass "fuse{epilogues=false loads=false}" | filecheck %s --check-prefix=ALONE
// RUN: tilewright opt %s --pass "fuse{partition=greedy}" | filecheck %s
// RUN: tilewright opt %s --pass "fuse{partition=gain rules=epilogue,rows}" | filecheck %s
// RUN: tilewright opt %s --pass "fuse{rules=elements}" | filecheck %s --check-prefix=ELEMENTS
// RUN: not tilewright opt %s --pass "fuse{rules=epilogues}" 2>&1 | filecheck %s --check-prefix=UNKNOWN
// UNKNOWN: there is no rule 'epilogues'; the rules are elements, product-rows, epilogue, rows, parts-beside, beside

#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#col = affine_map<(d0, d1) -> (d1)>

// Bias joins the first matmul; exp does not go into the operands of the second one; the row sum opens a region and takes
// the elementwise operation that follows.
// CHECK-LABEL: func.func @main
// CHECK: linalg.matmul {tw.region = 0 : i64}
// CHECK: linalg.generic {{.*}} attrs = {tw.region = 0 : i64}
// CHECK: arith.addf
// CHECK: linalg.generic {{.*}} attrs = {tw.region = 0 : i64}
// CHECK: math.exp
// CHECK: linalg.matmul {tw.region = 1 : i64}
// CHECK: linalg.generic {{.*}} attrs = {tw.region = 2 : i64}
// CHECK: arith.addf
// CHECK: linalg.generic {{.*}} attrs = {tw.region = 2 : i64}
// CHECK: arith.divf
// ELEMENTS-LABEL: func.func @main
// ELEMENTS: linalg.matmul {tw.region = 0 : i64}
// ELEMENTS-COUNT-2: attrs = {tw.region = 1 : i64}
// ELEMENTS: linalg.matmul {tw.region = 2 : i64}
// ELEMENTS: attrs = {tw.region = 3 : i64}
// ELEMENTS: attrs = {tw.region = 4 : i64}
// ALONE-LABEL: func.func @main
// ALONE: linalg.matmul {tw.region = 0 : i64}
// ALONE: linalg.generic {{.*}} attrs = {tw.region = 1 : i64}
// ALONE: linalg.generic {{.*}} attrs = {tw.region = 2 : i64}
// ALONE: linalg.matmul {tw.region = 3 : i64}
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>, %b: tensor<8xf32>) -> tensor<4x8xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x8xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
  %m = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x8xf32>) outs(%f : tensor<4x8xf32>) -> tensor<4x8xf32>
  %biased = linalg.generic {indexing_maps = [#id, #col, #id], iterator_types = ["parallel", "parallel"]}
      ins(%m, %b : tensor<4x8xf32>, tensor<8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%a: f32, %c: f32, %o: f32):
    %r = arith.addf %a, %c : f32
    linalg.yield %r : f32
  } -> tensor<4x8xf32>
  %exp = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%biased : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = math.exp %a : f32
    linalg.yield %r : f32
  } -> tensor<4x8xf32>
  %m2 = linalg.matmul ins(%exp, %w : tensor<4x8xf32>, tensor<8x8xf32>) outs(%f : tensor<4x8xf32>) -> tensor<4x8xf32>
  %e1 = tensor.empty() : tensor<4xf32>
  %f1 = linalg.fill ins(%z : f32) outs(%e1 : tensor<4xf32>) -> tensor<4xf32>
  %sum = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%m2 : tensor<4x8xf32>) outs(%f1 : tensor<4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %o : f32
    linalg.yield %r : f32
  } -> tensor<4xf32>
  %y = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%m2, %sum : tensor<4x8xf32>, tensor<4xf32>) outs(%e : tensor<4x8xf32>) {
  ^bb0(%a: f32, %c: f32, %o: f32):
    %r = arith.divf %a, %c : f32
    linalg.yield %r : f32
  } -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}
