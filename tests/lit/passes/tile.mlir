// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=6 nv=2 lanes=8 mc=144}"}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=1 nv=2 lanes=8 mc=8 stream=4}"}' | filecheck %s --check-prefix=STREAM
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=64 bn=32 bk=8}"}' | filecheck %s --check-prefix=SIMT
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=64 bn=32 bk=8 split-k=2 vec=4}"}' | filecheck %s --check-prefix=SPLIT
// RUN: not tilewright opt %s --pass "tile{config=nonsense}" 2>&1 | filecheck %s --check-prefix=FAMILY
// RUN: not tilewright opt %s --pass "tile{config=host_winograd}" 2>&1 | filecheck %s --check-prefix=REFUSED

// FAMILY: unknown kernel family 'nonsense'
// REFUSED: pass tile{config=host_winograd} failed: linalg.matmul at {{.*}}: wanted one or two windows of 2, 3, 4, 5 places

// Chunks of at most 144 rows, of about equal heights in blocks of 6, by panels of 16 columns; the bias is added to what the tiles
// of the product make.
// CHECK-LABEL: func.func @workload(
// CHECK-SAME: attributes {tw.config = "host_matmul{mr=6 nv=2 lanes=8 mc=144}"}
// CHECK: %[[M:.+]] = tensor.dim %arg0
// CHECK: %[[CHUNKS:.+]] = arith.floordivsi
// CHECK: %[[PRODUCT:.+]] = linalg.matmul
// CHECK: %[[INTO:.+]] = tensor.empty(%[[M]]) : tensor<?x72xf32>
// CHECK: %[[TILES:.+]] = scf.forall (%[[I:.+]], %[[J:.+]]) in (%[[CHUNKS]], 5) shared_outs(%[[OUT:.+]] = %[[INTO]])
// CHECK: %[[HEIGHT:.+]] = arith.muli %{{.+}}, %c6
// CHECK: %[[AT:.+]] = arith.muli %[[I]], %[[HEIGHT]]
// CHECK: %[[ROW:.+]] = arith.minsi %[[AT]], %[[M]]
// CHECK: %[[NEXT:.+]] = arith.addi %[[ROW]], %[[HEIGHT]]
// CHECK: %[[END:.+]] = arith.minsi %[[NEXT]], %[[M]]
// CHECK: %[[COLUMN:.+]] = arith.muli %[[J]], %c16
// CHECK: %[[ROWS:.+]] = arith.subi %[[END]], %[[ROW]]
// CHECK: %[[COLUMNS:.+]] = arith.subi %{{.+}}, %[[COLUMN]]
// CHECK: %[[TILE:.+]] = tensor.extract_slice %[[PRODUCT]][%[[ROW]], %[[COLUMN]]] [%[[ROWS]], %[[COLUMNS]]] [1, 1]
// CHECK: tensor.parallel_insert_slice %[[TILE]] into %[[OUT]][%[[ROW]], %[[COLUMN]]] [%[[ROWS]], %[[COLUMNS]]] [1, 1]
// CHECK: tw.axes = ["rows", "columns"]
// CHECK: linalg.generic {{.*}} ins(%[[TILES]], %arg2

// Where rows stream, they pass fastest.
// STREAM: scf.forall (%{{.+}}, %[[I:.+]]) in (5, %{{.+}})
// STREAM: arith.muli %[[I]], %

// A block of threads takes 64 x 32.
// SIMT: scf.forall (%[[I:.+]], %[[J:.+]]) in (%{{.+}}, 3) shared_outs
// SIMT: %[[ROW:.+]] = arith.muli %[[I]], %c64
// SIMT: %[[COLUMN:.+]] = arith.muli %[[J]], %c32
// SIMT: tensor.extract_slice %{{.+}}[%[[ROW]], %[[COLUMN]]]

// Parts of k are summed by a second launch, over vectors of the results: 256 of them a block.
// SPLIT: scf.forall
// SPLIT: tw.axes = ["rows", "columns"]
// SPLIT: %[[SUM:.+]] = linalg.generic
// SPLIT: scf.forall (%[[I:.+]], %[[J:.+]]) in (%{{.+}}, 18)
// SPLIT: %[[COLUMN:.+]] = arith.muli %[[J]], %c4
// SPLIT: tensor.extract_slice %[[SUM]][%[[I]], %[[COLUMN]]] [1, 4] [1, 1]
// SPLIT: tw.axes = ["d0", "d1"], tw.block = 256

func.func @workload(%a: tensor<?x64xf32> {tw.dims = ["T", 64], tw.unit = 1},
                    %b: tensor<64x72xf32> {tw.dims = [64, 72], tw.unit = 1},
                    %bias: tensor<72xf32> {tw.dims = [72], tw.unit = 0}, %t: index {tw.dims = ["T"]})
    -> (tensor<?x72xf32> {tw.dims = ["T", 72], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty(%t) : tensor<?x72xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x72xf32>) -> tensor<?x72xf32>
  %product = linalg.matmul ins(%a, %b : tensor<?x64xf32>, tensor<64x72xf32>) outs(%start : tensor<?x72xf32>) -> tensor<?x72xf32>
  %result = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
                            iterator_types = ["parallel", "parallel"]}
      ins(%product, %bias : tensor<?x72xf32>, tensor<72xf32>) outs(%empty : tensor<?x72xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %s = arith.addf %x, %y : f32
      linalg.yield %s : f32
  } -> tensor<?x72xf32>
  return %result : tensor<?x72xf32>
}
