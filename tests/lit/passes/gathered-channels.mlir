// RUN: tilewright opt %s --pass "gathered-channels{taps=2}" | filecheck %s
// RUN: tilewright opt %s --pass "gathered-channels" | filecheck %s --check-prefix=FEW
// RUN: tilewright opt %s --pass "gathered-channels{taps=2 channels=33}" | filecheck %s --check-prefix=FEW

// Two pixels of an image at places that a table names, of 32 channels: the channels are read as one run.
// CHECK-LABEL: func.func @main
// CHECK: %[[IMAGE:.*]] = linalg.generic {{.*}} ins(%arg0 : tensor<?x32x400xf32>) outs({{.*}} : tensor<?x400x32xf32>) attrs = {tw.copy}
// CHECK: linalg.generic {{.*}} outs({{.*}} : tensor<?x200x32xf32>)
// CHECK: %[[N:.*]] = linalg.index 0
// CHECK: %[[C:.*]] = linalg.index 1
// CHECK: tensor.extract %[[IMAGE]][%[[N]], %[[FIRST:.*]], %[[C]]]
// CHECK: tensor.extract %[[IMAGE]][%[[N]], %[[SECOND:.*]], %[[C]]]
// CHECK: linalg.generic {{.*}} ins({{.*}} : tensor<?x200x32xf32>) outs({{.*}} : tensor<?x32x200xf32>) attrs = {tw.copy}

// FEW-LABEL: func.func @main
// FEW-NOT: tw.copy
// FEW: tensor.extract %arg0
func.func @main(%x: tensor<?x32x400xf32> {tw.dims = ["B", 32, 400]}, %i: tensor<?x200xi32> {tw.dims = ["B", 200]})
    -> tensor<?x32x200xf32> {
  %c0 = arith.constant 0 : index
  %b = tensor.dim %x, %c0 : tensor<?x32x400xf32>
  %e = tensor.empty(%b) : tensor<?x32x200xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d0, d1, d2)>],
    iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%i : tensor<?x200xi32>) outs(%e : tensor<?x32x200xf32>) {
  ^bb0(%at: i32, %o: f32):
    %n = linalg.index 0 : index
    %c = linalg.index 1 : index
    %one = arith.constant 1 : index
    %p = arith.index_cast %at : i32 to index
    %q = arith.addi %p, %one : index
    %l = tensor.extract %x[%n, %c, %p] : tensor<?x32x400xf32>
    %r = tensor.extract %x[%n, %c, %q] : tensor<?x32x400xf32>
    %s = arith.addf %l, %r : f32
    linalg.yield %s : f32
  } -> tensor<?x32x200xf32>
  return %y : tensor<?x32x200xf32>
}
