// RUN: tilewright opt %s --pass 'tile{config="host_rows"},emit-micro-kernel' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_rows{vectors=2 unroll=2 rows=4}"},emit-micro-kernel' | filecheck %s --check-prefix=SHORT
// RUN: tilewright opt %s --pass 'tile{config="host_rows{axis=lane}"},emit-micro-kernel' | filecheck %s --check-prefix=LANE

#full = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>
func.func @workload(%x: tensor<?x?xf32> {tw.dims = ["d0", "d1"], tw.unit = 1}, %d0: index {tw.dims = ["d0"]},
                    %d1: index {tw.dims = ["d1"]}) -> (tensor<?x?xf32> {tw.dims = ["d0", "d1"], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %to = tensor.empty(%d0, %d1) : tensor<?x?xf32>
  %rows = tensor.empty(%d0) : tensor<?xf32>
  %start = linalg.fill ins(%zero : f32) outs(%rows : tensor<?xf32>) -> tensor<?xf32>
  %e = linalg.generic {indexing_maps = [#full, #full], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<?x?xf32>) outs(%to : tensor<?x?xf32>) { ^bb0(%a: f32, %o: f32):
    %y = math.exp %a : f32
    linalg.yield %y : f32 } -> tensor<?x?xf32>
  %sum = linalg.generic {indexing_maps = [#full, #row], iterator_types = ["parallel", "reduction"]}
      ins(%e : tensor<?x?xf32>) outs(%start : tensor<?xf32>) { ^bb0(%a: f32, %o: f32):
    %y = arith.addf %a, %o : f32
    linalg.yield %y : f32 } -> tensor<?xf32>
  %out = linalg.generic {indexing_maps = [#full, #row, #full], iterator_types = ["parallel", "parallel"]}
      ins(%e, %sum : tensor<?x?xf32>, tensor<?xf32>) outs(%to : tensor<?x?xf32>) { ^bb0(%a: f32, %s: f32, %o: f32):
    %y = arith.divf %a, %s : f32
    linalg.yield %y : f32 } -> tensor<?x?xf32>
  return %out : tensor<?x?xf32>
}

// Four accumulators in the main loop; exponentials go to the workspace and are read back; the lanes join by halves.
// CHECK: tw.kernel = {{.+}}\22grid\22:[\22floordiv(d0 + 3, 4)\22
// CHECK: llvm.func internal @kernel_body
// CHECK: scf.for
// CHECK: scf.for {{.+}} iter_args({{.+}}) -> (vector<16xf32>, vector<16xf32>, vector<16xf32>, vector<16xf32>)
// CHECK-COUNT-4: math.exp %{{.+}} : vector<16xf32>
// CHECK: vector.shuffle %{{.+}} [8, 9, 10, 11, 12, 13, 14, 15] : vector<16xf32>, vector<16xf32>
// CHECK: arith.addf %{{.+}} fastmath<contract> : vector<8xf32>
// CHECK: vector.extract
// CHECK-NOT: math.exp
// CHECK: arith.divf %{{.+}} : vector<16xf32>

// Rows of at most two vectors, one body for each number; the sums of four rows lie on the stack.
// SHORT: \22guards\22:[\22max(0, d1 - 32)\22]
// SHORT: llvm.alloca %{{.+}} x f32 {alignment = 64 : i64}
// SHORT: scf.if
// SHORT-COUNT-1: math.exp
// SHORT: arith.divf
// SHORT: } else {
// SHORT-COUNT-2: math.exp
// SHORT: llvm.intr.masked.store
// SHORT-NOT: math.exp

// A row per lane: nothing joins.
// LANE: iter_args({{.+}}) -> (vector<16xf32>, vector<16xf32>, vector<16xf32>, vector<16xf32>)
// LANE-NOT: [8, 9, 10, 11, 12, 13, 14, 15]
