// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=4 nv=2 next-rows=true}"},emit-micro-kernel' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=4 nv=2}"},emit-micro-kernel' | filecheck %s --check-prefix=WITHOUT

#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func @workload(%x: tensor<?x64xf32> {tw.dims = ["d0", 64], tw.unit = 1}, %w: tensor<?x64xf32> {tw.dims = ["d1", 64], tw.unit = 1},
                    %d0: index {tw.dims = ["d0"]}, %d1: index {tw.dims = ["d1"]})
    -> (tensor<?x?xf32> {tw.dims = ["d0", "d1"], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %to = tensor.empty(%d0, %d1) : tensor<?x?xf32>
  %start = linalg.fill ins(%zero : f32) outs(%to : tensor<?x?xf32>) -> tensor<?x?xf32>
  %y = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<?x64xf32>, tensor<?x64xf32>) outs(%start : tensor<?x?xf32>) { ^bb0(%p: f32, %q: f32, %o: f32):
    %m = arith.mulf %p, %q : f32
    %s = arith.addf %m, %o : f32
    linalg.yield %s : f32 } -> tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}

// One line of the rows to come at each value of k, to be read.
// CHECK: llvm.func internal @kernel_body
// CHECK: "llvm.intr.prefetch"(%{{.+}}) <{cache = 1 : i32, hint = 3 : i32, rw = 0 : i32}>
// CHECK-COUNT-8: llvm.intr.fmuladd

// WITHOUT: llvm.func internal @kernel_body
// WITHOUT-NOT: llvm.intr.prefetch
