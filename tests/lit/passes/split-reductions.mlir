// RUN: tilewright opt %s --pass "split-reductions" | filecheck %s
// RUN: tilewright opt %s --pass "split-reductions,fuse" | filecheck %s --check-prefix=FUSED

// Sums down the rows are done for every 64 of them, then joined. Fused, the parts are done beside the work on the rows.
// CHECK: #[[PART:.+]] = affine_map<(d0, d1) -> (d1 floordiv 64, d0)>
// CHECK-LABEL: func.func @main
// CHECK: %[[NONE:.+]] = arith.constant -0.0
// CHECK: %[[START:.+]] = linalg.fill ins(%[[NONE]] : f32) outs(%{{.+}} : tensor<?x256xf32>)
// CHECK: %[[PARTS:.+]] = linalg.generic {indexing_maps = [#{{.+}}, #[[PART]]], iterator_types = ["parallel", "reduction"]} {{.*}} outs(%[[START]] : tensor<?x256xf32>)
// CHECK: linalg.generic {{.*}} iterator_types = ["reduction", "parallel"]} ins(%[[PARTS]] : tensor<?x256xf32>)
// FUSED-LABEL: func.func @main
// FUSED: linalg.generic {{.*}} attrs = {tw.region = 0 : i64}
// FUSED: math.exp
// FUSED: linalg.generic {{.*}} attrs = {tw.region = 0 : i64}
// FUSED: linalg.generic {{.*}} attrs = {tw.region = 1 : i64}
func.func @main(%x: tensor<?x256xf32> {tw.dims = ["T", 256]}) -> (tensor<?x256xf32>, tensor<256xf32>) attributes {tw.ranges = {T = [1, 4096, 1]}} {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %T = tensor.dim %x, %c0 : tensor<?x256xf32>
  %e = tensor.empty(%T) : tensor<?x256xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
                       iterator_types = ["parallel", "parallel"]} ins(%x : tensor<?x256xf32>) outs(%e : tensor<?x256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = math.exp %a : f32
    linalg.yield %r : f32
  } -> tensor<?x256xf32>
  %e1 = tensor.empty() : tensor<256xf32>
  %f1 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<256xf32>) -> tensor<256xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0)>],
                       iterator_types = ["parallel", "reduction"]} ins(%y : tensor<?x256xf32>) outs(%f1 : tensor<256xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %o : f32
    linalg.yield %r : f32
  } -> tensor<256xf32>
  return %y, %s : tensor<?x256xf32>, tensor<256xf32>
}

// Few rows, and sums along the columns, stay as they are.
// CHECK-LABEL: func.func @few
// CHECK-NOT: floordiv
// CHECK: return
func.func @few(%x: tensor<32x256xf32>, %o: tensor<256xf32>) -> tensor<256xf32> {
  %s = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0)>],
                       iterator_types = ["parallel", "reduction"]} ins(%x : tensor<32x256xf32>) outs(%o : tensor<256xf32>) {
  ^bb0(%a: f32, %b: f32):
    %r = arith.addf %a, %b : f32
    linalg.yield %r : f32
  } -> tensor<256xf32>
  return %s : tensor<256xf32>
}

// CHECK-LABEL: func.func @rows
// CHECK: iterator_types = ["parallel", "reduction"]
// CHECK-NOT: linalg.generic
// CHECK: return
func.func @rows(%x: tensor<4096x256xf32>, %o: tensor<4096xf32>) -> tensor<4096xf32> {
  %s = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>],
                       iterator_types = ["parallel", "reduction"]} ins(%x : tensor<4096x256xf32>) outs(%o : tensor<4096xf32>) {
  ^bb0(%a: f32, %b: f32):
    %r = arith.addf %a, %b : f32
    linalg.yield %r : f32
  } -> tensor<4096xf32>
  return %s : tensor<4096xf32>
}
