// RUN: tilewright opt --pass "fuse{by-shape=true}" %s | filecheck %s
// Few long rows: elements are a kernel whose work threads share. Many: one kernel reads them once. A branch on the rows decides.

// CHECK-LABEL: func.func @main
// CHECK: call @frame_
// CHECK-LABEL: func.func @body_0
// CHECK-SAME: tw.ranges = {T = [1, [[BOUND:[0-9]+]], 1]}
// CHECK: tw.region = 0
// CHECK: tw.region = 1
// CHECK: return
// CHECK-LABEL: func.func @body_1
// CHECK-SAME: 4096, 1]}
// CHECK: tw.region = 0
// CHECK-NOT: tw.region = 1
// CHECK: return
// CHECK-LABEL: func.func @frame_
// CHECK: scf.if
// CHECK: call @body_0
// CHECK: call @body_1
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
func.func @main(%x: tensor<?x65536xf32> {tw.dims = ["T", 65536]}) -> (tensor<?x65536xf32>, tensor<?xf32>)
    attributes {tw.ranges = {T = [1, 4096, 1]}} {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %T = tensor.dim %x, %c0 : tensor<?x65536xf32>
  %e = tensor.empty(%T) : tensor<?x65536xf32>
  %r = tensor.empty(%T) : tensor<?xf32>
  %f = linalg.fill ins(%zero : f32) outs(%r : tensor<?xf32>) -> tensor<?xf32>
  %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<?x65536xf32>) outs(%e : tensor<?x65536xf32>) {
  ^bb0(%a: f32, %o: f32):
    %0 = math.exp %a : f32
    linalg.yield %0 : f32
  } -> tensor<?x65536xf32>
  %s = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<?x65536xf32>) outs(%f : tensor<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %0 = arith.addf %a, %o : f32
    linalg.yield %0 : f32
  } -> tensor<?xf32>
  return %y, %s : tensor<?x65536xf32>, tensor<?xf32>
}
