// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=4 nv=2 lanes=8}"},emit-micro-kernel{symbol=mm}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=2 nv=2 lanes=8 pack=panel mc=4}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=PANEL
// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=1 nv=4 lanes=8 prefetch=4 stream=4}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=STREAM

// The sums of a 4 x 16 block are carried through the loop over k; the bias is added once per vector.
// CHECK-LABEL: llvm.func internal @mm_body
// CHECK: scf.for
// CHECK: scf.for
// CHECK: :8 = scf.for {{.*}} iter_args({{.*}}) -> (vector<8xf32>, vector<8xf32>, {{.*}})
// CHECK: llvm.load {{.*}} -> vector<8xf32>
// CHECK: llvm.load {{.*}} -> vector<8xf32>
// CHECK: llvm.load {{.*}} -> f32
// CHECK: vector.broadcast
// CHECK-NEXT: llvm.intr.fmuladd
// CHECK-NEXT: llvm.intr.fmuladd
// CHECK-NOT: masked
// CHECK: scf.yield
// CHECK: arith.addf
// CHECK: llvm.store {{.*}} : vector<8xf32>
// CHECK: llvm.func @mm(

// PANEL-LABEL: llvm.func internal @mm_body
// PANEL-SAME: %[[WORKSPACE:[^:]*]]: !llvm.ptr) {
// PANEL: %[[PANEL:.*]] = llvm.getelementptr %[[WORKSPACE]]
// PANEL: llvm.getelementptr %[[PANEL]]
// PANEL-NEXT: llvm.store
// PANEL: iter_args
// PANEL: llvm.getelementptr %[[PANEL]]
// PANEL: llvm.load {{.*}} -> vector<8xf32>

// STREAM-LABEL: llvm.func internal @mm_body
// STREAM-COUNT-4: llvm.intr.prefetch
// STREAM-LABEL: llvm.func @mm(


func.func @workload(%a: tensor<?x64xf32> {tw.dims = ["T", 64], tw.unit = 1},
                    %b: tensor<64x32xf32> {tw.dims = [64, 32], tw.unit = 1},
                    %bias: tensor<32xf32> {tw.dims = [32], tw.unit = 0}, %t: index {tw.dims = ["T"]})
    -> (tensor<?x32xf32> {tw.dims = ["T", 32], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty(%t) : tensor<?x32xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x32xf32>) -> tensor<?x32xf32>
  %product = linalg.matmul ins(%a, %b : tensor<?x64xf32>, tensor<64x32xf32>) outs(%start : tensor<?x32xf32>) -> tensor<?x32xf32>
  %result = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
                            iterator_types = ["parallel", "parallel"]}
      ins(%product, %bias : tensor<?x32xf32>, tensor<32xf32>) outs(%empty : tensor<?x32xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %s = arith.addf %x, %y : f32
      linalg.yield %s : f32
  } -> tensor<?x32xf32>
  return %result : tensor<?x32xf32>
}
