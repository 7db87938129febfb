// RUN: tilewright opt %s --pass "constants-as-read" | filecheck %s
// RUN: tilewright opt %s --pass "constants-as-read{elements=2000}" | filecheck %s --check-prefix=LARGER

// A constant table [place, head] that is added to scores [batch, head, place] is read through a copy [head, place], which is
// made at compile time. What is read in the order of the loops, and arguments, stay as they are.
// CHECK: #[[READ:.+]] = affine_map<(d0, d1, d2) -> (d1, d2)>
// CHECK-LABEL: func.func @main
// CHECK: %[[W:.*]] = linalg.generic {{.*}} ins(%arg1 : tensor<300x6xf32>) outs({{.*}} : tensor<6x300xf32>) attrs = {tw.copy}
// CHECK: linalg.generic {indexing_maps = [#{{.+}}, #[[READ]], #[[READ]], #{{.+}}, #{{.+}}]{{.*}} ins(%arg0, %[[W]], %arg2, %arg3 :
// CHECK-NOT: tw.copy
// LARGER-NOT: tw.copy
func.func @main(%arg0: tensor<?x6x300xf32> {tw.dims = ["N", 6, 300]}, %arg1: tensor<300x6xf32> {tw.constant, tw.dims = [300, 6]}, %arg2: tensor<6x300xf32> {tw.constant, tw.dims = [6, 300]}, %arg3: tensor<300x6xf32> {tw.dims = [300, 6]}) -> tensor<?x6x300xf32> attributes {tw.ranges = {N = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %arg0, %c0 : tensor<?x6x300xf32>
  %empty = tensor.empty(%n) : tensor<?x6x300xf32>
  %sum = linalg.generic {indexing_maps = [affine_map<(n, h, p) -> (n, h, p)>, affine_map<(n, h, p) -> (p, h)>,
                                          affine_map<(n, h, p) -> (h, p)>, affine_map<(n, h, p) -> (p, h)>,
                                          affine_map<(n, h, p) -> (n, h, p)>],
                         iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%arg0, %arg1, %arg2, %arg3 : tensor<?x6x300xf32>, tensor<300x6xf32>, tensor<6x300xf32>, tensor<300x6xf32>)
    outs(%empty : tensor<?x6x300xf32>) {
  ^bb0(%x: f32, %a: f32, %b: f32, %c: f32, %o: f32):
    %s = arith.addf %x, %a : f32
    %t = arith.addf %s, %b : f32
    %u = arith.addf %t, %c : f32
    linalg.yield %u : f32
  } -> tensor<?x6x300xf32>
  return %sum : tensor<?x6x300xf32>
}
