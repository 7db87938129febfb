// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=2 nv=2}"},emit-micro-kernel' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=2 nv=2 lanes=8}"},emit-micro-kernel' | filecheck %s --check-prefix=HALF
// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=1 nv=2 lanes=8}"},emit-micro-kernel' | filecheck %s --check-prefix=ROW

#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func @workload(%x: tensor<?x16xf32> {tw.dims = ["d0", 16], tw.unit = 1}, %w: tensor<?x16xf32> {tw.dims = ["d1", 16], tw.unit = 1},
                    %d0: index {tw.dims = ["d0"]}, %d1: index {tw.dims = ["d1"]})
    -> (tensor<?x?xf32> {tw.dims = ["d0", "d1"], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %to = tensor.empty(%d0, %d1) : tensor<?x?xf32>
  %start = linalg.fill ins(%zero : f32) outs(%to : tensor<?x?xf32>) -> tensor<?x?xf32>
  %y = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<?x16xf32>, tensor<?x16xf32>) outs(%start : tensor<?x?xf32>) { ^bb0(%p: f32, %q: f32, %o: f32):
    %m = arith.mulf %p, %q : f32
    %s = arith.addf %m, %o : f32
    linalg.yield %s : f32 } -> tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}

// Sixteen products an element: the lines that two rows of two vectors will be stored to are fetched, to be written, before them.
// CHECK-COUNT-4: "llvm.intr.prefetch"(%{{.+}}) <{cache = 1 : i32, hint = 3 : i32, rw = 1 : i32}>
// CHECK: vector<16xf32>

// Half a line a vector: blocks of two rows fetch the line that each has in the next panel of 16 columns, those of the last do not.
// HALF: arith.addi %{{.+}}, %c16_i64{{.*}} : i64
// HALF: "llvm.intr.prefetch"(%{{.+}}) <{cache = 1 : i32, hint = 3 : i32, rw = 1 : i32}>
// HALF: arith.addi %{{.+}}, %c16_i64{{.*}} : i64
// HALF: "llvm.intr.prefetch"(%{{.+}}) <{cache = 1 : i32, hint = 3 : i32, rw = 1 : i32}>
// HALF-NOT: rw = 1 : i32
// HALF: llvm.return

// Rows of one come in order.
// ROW: llvm.func internal @kernel_body
// ROW-NOT: rw = 1 : i32
