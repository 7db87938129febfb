// RUN: tilewright opt %s --pass "extract-to-operand" | filecheck %s

// CHECK-DAG: #[[ID:.*]] = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
// CHECK-DAG: #[[ROW:.*]] = affine_map<(d0, d1, d2) -> (d0, d1, 0)>
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic {indexing_maps = [#[[ROW]], #[[ID]]]
// CHECK-SAME: ins(%arg1 : tensor<?x?x1xf32>)
// CHECK-NEXT: ^bb0(%[[IN:.*]]: f32, %{{.*}}: f32):
// CHECK-NEXT: linalg.yield %[[IN]] : f32
// CHECK-NOT: tensor.extract
#map1 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
func.func @main(%arg0: tensor<?x?x768xf32> {tw.dims = ["B", "S", 768]}, %arg1: tensor<?x?x1xf32> {tw.dims = ["B", "S", 1]}) -> tensor<?x?x768xf32> attributes {tw.ranges = {B = [1, 8, 1], S = [1, 128, 1]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %dim = tensor.dim %arg0, %c0 : tensor<?x?x768xf32>
  %dim_7 = tensor.dim %arg0, %c1 : tensor<?x?x768xf32>
  %78 = tensor.empty(%dim, %dim_7) : tensor<?x?x768xf32>
  %79 = linalg.generic {indexing_maps = [#map1], iterator_types = ["parallel", "parallel", "parallel"]} outs(%78 : tensor<?x?x768xf32>) {
  ^bb0(%out: f32):
    %116 = linalg.index 0 : index
    %117 = linalg.index 1 : index
    %118 = arith.cmpi eq, %dim, %c1 : index
    %119 = arith.select %118, %c0, %116 : index
    %120 = arith.cmpi eq, %dim_7, %c1 : index
    %121 = arith.select %120, %c0, %117 : index
    %extracted = tensor.extract %arg1[%119, %121, %c0] : tensor<?x?x1xf32>
    linalg.yield %extracted : f32
  } -> tensor<?x?x768xf32>
  return %79 : tensor<?x?x768xf32>
}

// A table of its own extent is gathered from, not broadcast.
// CHECK-LABEL: func.func @gather
// CHECK: tensor.extract %arg1
func.func @gather(%arg0: tensor<?xf32> {tw.dims = ["M"]}, %arg1: tensor<?xf32> {tw.dims = ["V"]}) -> tensor<?xf32> attributes {tw.ranges = {M = [1, 8, 1], V = [8, 128, 1]}} {
  %0 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} outs(%arg0 : tensor<?xf32>) {
  ^bb0(%out: f32):
    %1 = linalg.index 0 : index
    %extracted = tensor.extract %arg1[%1] : tensor<?xf32>
    linalg.yield %extracted : f32
  } -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
