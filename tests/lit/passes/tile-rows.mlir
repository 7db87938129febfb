// RUN: tilewright opt %s --pass 'tile{config="host_rows{block=8}"}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_rows{axis=lane lanes=8 unroll=2 block=4}"}' | filecheck %s --check-prefix=LANE
// RUN: tilewright opt %s --pass 'tile{config="gpu_rows{threads=128 per-row=32}"}' | filecheck %s --check-prefix=GPU

// Batch and row are one space; both results are cut, one into whole rows, one into an element a row.
// CHECK: %[[SUM:.+]] = linalg.generic
// CHECK: %[[OUT:.+]] = linalg.generic
// CHECK: scf.forall (%[[U:.+]]) in (%{{.+}}) shared_outs(%{{.+}} = %{{.+}}, %{{.+}} = %{{.+}}) -> (tensor<?x?xf32>, tensor<?xf32>)
// CHECK: %[[FIRST:.+]] = arith.muli %[[U]], %c8
// CHECK: arith.minsi
// CHECK: tensor.collapse_shape %[[OUT]] {{\[}}[0, 1], [2]]
// CHECK: tensor.extract_slice %{{.+}}[%[[FIRST]], 0] [%[[ROWS:.+]], %{{.+}}] [1, 1]
// CHECK: tensor.collapse_shape %[[SUM]] {{\[}}[0, 1]]
// CHECK: tensor.extract_slice %{{.+}}[%[[FIRST]]] [%{{.+}}] [1]
// CHECK: tw.axes = ["rows", ""]

// With a row per lane, 2 x 8 rows of one batch, four times in a unit.
// LANE: scf.forall (%[[B:.+]], %[[U:.+]]) in (%{{.+}}, %{{.+}})
// LANE: %[[FIRST:.+]] = arith.muli %[[U]], %c16
// LANE: tensor.extract_slice %{{.+}}[%[[B]], %[[FIRST]], 0] [1, %{{.+}}, %{{.+}}] [1, 1, 1]
// LANE: tw.axes = ["d0", "lanes", ""], tw.block = 4

// Four rows a block of threads, a warp each.
// GPU: scf.forall (%[[U:.+]]) in
// GPU: arith.muli %[[U]], %c4
// GPU: tensor.extract_slice
// GPU: tw.axes = ["rows", ""]

#full = affine_map<(b, i, j) -> (b, i, j)>
#row = affine_map<(b, i, j) -> (b, i)>
func.func @workload(%x: tensor<?x?x?xf32> {tw.dims = ["B", "M", "N"], tw.unit = 2}, %B: index {tw.dims = ["B"]},
                    %M: index {tw.dims = ["M"]}, %N: index {tw.dims = ["N"]})
    -> (tensor<?x?x?xf32> {tw.dims = ["B", "M", "N"], tw.unit = 2}, tensor<?x?xf32> {tw.dims = ["B", "M"], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %to = tensor.empty(%B, %M, %N) : tensor<?x?x?xf32>
  %rows = tensor.empty(%B, %M) : tensor<?x?xf32>
  %start = linalg.fill ins(%zero : f32) outs(%rows : tensor<?x?xf32>) -> tensor<?x?xf32>
  %sum = linalg.generic {indexing_maps = [#full, #row], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x : tensor<?x?x?xf32>) outs(%start : tensor<?x?xf32>) { ^bb0(%a: f32, %o: f32):
    %y = arith.addf %a, %o : f32
    linalg.yield %y : f32 } -> tensor<?x?xf32>
  %out = linalg.generic {indexing_maps = [#full, #row, #full], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x, %sum : tensor<?x?x?xf32>, tensor<?x?xf32>) outs(%to : tensor<?x?x?xf32>) { ^bb0(%a: f32, %s: f32, %o: f32):
    %y = arith.subf %a, %s : f32
    linalg.yield %y : f32 } -> tensor<?x?x?xf32>
  return %out, %sum : tensor<?x?x?xf32>, tensor<?x?xf32>
}
