// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=4 nv=2 lanes=8 pairs=true}"},emit-micro-kernel{symbol=mm}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=4 nv=2 lanes=8}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=WIDE

// A step takes two values of k: two rows of columns are interleaved, a word of a row is in all lanes.
// CHECK-LABEL: llvm.func internal @mm_body
// CHECK: :8 = scf.for {{.*}} iter_args({{.*}}) -> (vector<8xf32>, vector<8xf32>, {{.*}})
// CHECK: llvm.load {{.*}} -> vector<8xbf16>
// CHECK: llvm.load {{.*}} -> vector<8xbf16>
// CHECK: vector.shuffle {{.*}} [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]
// CHECK: llvm.load {{.*}} -> vector<2xbf16>
// CHECK: vector.broadcast {{.*}} : i32 to vector<8xi32>
// CHECK: llvm.call_intrinsic "llvm.x86.avx512bf16.dpbf16ps.256"({{.*}}) : (vector<8xf32>, vector<16xbf16>, vector<16xbf16>) -> vector<8xf32>

// WIDE-NOT: dpbf16ps
// WIDE: llvm.intr.fmuladd

func.func @workload(%a: tensor<?x64xbf16> {tw.dims = ["T", 64], tw.unit = 1}, %b: tensor<64x32xbf16> {tw.dims = [64, 32], tw.unit = 1},
                    %t: index {tw.dims = ["T"]}) -> (tensor<?x32xbf16> {tw.dims = ["T", 32], tw.unit = 1}) {
  %zero = arith.constant 0.0 : bf16
  %empty = tensor.empty(%t) : tensor<?x32xbf16>
  %start = linalg.fill ins(%zero : bf16) outs(%empty : tensor<?x32xbf16>) -> tensor<?x32xbf16>
  %product = linalg.matmul ins(%a, %b : tensor<?x64xbf16>, tensor<64x32xbf16>) outs(%start : tensor<?x32xbf16>) -> tensor<?x32xbf16>
  return %product : tensor<?x32xbf16>
}
