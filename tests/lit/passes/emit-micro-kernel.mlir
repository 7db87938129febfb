// RUN: tilewright opt %s --pass 'emit-micro-kernel{symbol=relu}' | filecheck %s
// RUN: not tilewright opt %S/tile.mlir --pass emit-micro-kernel 2>&1 | filecheck %s --check-prefix=WHOLE

// WHOLE: the function has no tw.config: run `tile` before this pass

// Work units and their tiles are those of the IR, here of 24 elements, which no configuration gives.
// CHECK: tw.kernel = "{{.*}}symbol{{.*}}relu{{.*}}\22grid\22:[\22floordiv(d0 + 23, 24)\22
// CHECK: llvm.func internal @relu_body(
// CHECK: scf.for {{.+}} iter_args(%[[UNIT:[^ ]+]] =
// CHECK: %[[STEP:.+]] = arith.constant 24 : i64
// CHECK: %[[FIRST:.+]] = arith.muli %[[UNIT]], %[[STEP]] : i64
// CHECK: arith.minsi
// CHECK: scf.for %{{.+}} = %[[FIRST]] to
// CHECK: arith.maximumf {{.*}} : vector<8xf32>
// CHECK: llvm.intr.masked.store
// CHECK: llvm.func @relu(%{{.*}}: !llvm.ptr, %{{.*}}: i64, %{{.*}}: i64, %{{.*}}: !llvm.ptr)
func.func @workload(%x: tensor<?xf32> {tw.dims = ["d0"], tw.unit = 0 : i64}, %d0: index {tw.dims = ["d0"]})
    -> (tensor<?xf32> {tw.dims = ["d0"], tw.unit = 0 : i64}) attributes {tw.config = "generic{lanes=8}"} {
  %c24 = arith.constant 24 : index
  %units = arith.ceildivsi %d0, %c24 : index
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty(%d0) : tensor<?xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x : tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.maximumf %a, %zero : f32
    linalg.yield %r : f32
  } -> tensor<?xf32>
  %tiles = scf.forall (%u) in (%units) shared_outs(%out = %empty) -> (tensor<?xf32>) {
    %step = arith.constant 24 : index
    %first = arith.muli %u, %step : index
    %next = arith.addi %first, %step : index
    %end = arith.minsi %next, %d0 : index
    %size = arith.subi %end, %first : index
    %tile = tensor.extract_slice %y[%first] [%size] [1] : tensor<?xf32> to tensor<?xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %tile into %out[%first] [%size] [1] : tensor<?xf32> into tensor<?xf32>
    }
  } {tw.axes = ["d0"]}
  return %tiles : tensor<?xf32>
}
