// RUN: tilewright opt %s --pass 'tile{config="host_rows{unroll=2 rows=4 block=32}"},emit-micro-kernel' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_rows{axis=lane held=true block=32}"},emit-micro-kernel' | filecheck %s --check-prefix=COLUMNS
// RUN: tilewright opt %s --pass 'tile{config="host_rows{axis=lane block=32}"},emit-micro-kernel' | filecheck %s --check-prefix=UNITS

// Sums down the rows alone: four rows go side by side, and what a part has so far is read and written once for all of these.
// CHECK: llvm.func internal @kernel_body
// CHECK: scf.for %[[ROW:.+]] = %{{.+}} to %{{.+}} step %c4_i64{{.*}} : i64 {
// CHECK: scf.for
// CHECK: llvm.load %{{.+}} -> vector<16xf32>
// CHECK-NOT: llvm.store
// CHECK-COUNT-4: arith.addf %{{.+}} : vector<16xf32>
// CHECK-NEXT: arith.muli
// CHECK: llvm.store

// One thread reads rows of what lies beyond its first cache from end to end, four vectors a step, and the workspace has the sums.
// COLUMNS: llvm.func internal @kernel_body({{.+}}, %[[WORKSPACE:.+]]: !llvm.ptr)
// COLUMNS: arith.cmpi slt, %c49152_i64
// COLUMNS: scf.if
// COLUMNS: %[[SUMS:.+]] = llvm.getelementptr %[[WORKSPACE]]
// COLUMNS: scf.for
// COLUMNS: scf.for
// COLUMNS: %[[SUM:.+]] = llvm.getelementptr %[[SUMS]]
// COLUMNS-NEXT: llvm.store %{{.+}}, %[[SUM]]
// COLUMNS: scf.for
// COLUMNS: scf.for %{{.+}} = %{{.+}} to %{{.+}} step %c64_i64
// COLUMNS: arith.addf %{{.+}} : vector<16xf32>
// COLUMNS: llvm.store

// A work unit of four vectors of columns: a part is summed up in registers over its rows and stored once.
// COLUMNS: } else {
// COLUMNS: scf.if
// COLUMNS: scf.for
// COLUMNS: scf.for {{.+}} iter_args
// COLUMNS-NOT: llvm.store
// COLUMNS-COUNT-4: arith.addf %{{.+}} : vector<16xf32>
// COLUMNS: scf.yield
// COLUMNS-COUNT-4: llvm.store

// Where sums are not held all units have columns, and there is no workspace to store them in.
// UNITS: llvm.func internal @kernel_body
// UNITS-NOT: %c49152_i64
// UNITS: scf.for {{.+}} iter_args
// UNITS-NOT: llvm.store
// UNITS-COUNT-4: arith.addf %{{.+}} : vector<16xf32>
// UNITS: scf.yield
// UNITS-COUNT-4: llvm.store
func.func @workload(%x: tensor<?x768xf32> {tw.dims = ["d0", "768"], tw.unit = 1}, %d0: index {tw.dims = ["d0"]},
                    %d1: index {tw.dims = ["d1"]}) -> (tensor<?x768xf32> {tw.dims = ["d1", "768"], tw.unit = 1}) {
  %none = arith.constant -0.0 : f32
  %to = tensor.empty(%d1) : tensor<?x768xf32>
  %start = linalg.fill ins(%none : f32) outs(%to : tensor<?x768xf32>) -> tensor<?x768xf32>
  %parts = linalg.generic {indexing_maps = [affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (j floordiv 32, i)>],
                           iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<?x768xf32>) outs(%start : tensor<?x768xf32>) { ^bb0(%a: f32, %o: f32):
    %y = arith.addf %a, %o : f32
    linalg.yield %y : f32 } -> tensor<?x768xf32>
  return %parts : tensor<?x768xf32>
}
