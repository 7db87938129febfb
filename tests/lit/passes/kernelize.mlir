// RUN: tilewright opt %s --pass 'tile{config="generic{lanes=8}"},emit-micro-kernel{symbol=relu}' | filecheck %s
// RUN: not tilewright opt %s --pass "kernelize{bogus=1}" 2>&1 | filecheck %s --check-prefix=BAD
// RUN: not tilewright opt %s --pass "kernelize{config=nonsense}" 2>&1 | filecheck %s --check-prefix=FAMILY

// BAD: kernelize has no option 'bogus'
// FAMILY: unknown kernel family 'nonsense'

// CHECK: tw.kernel = "{{.*}}symbol{{.*}}relu
// CHECK: llvm.func internal @relu_body(
// CHECK: scf.for
// CHECK: arith.maximumf {{.*}} : vector<8xf32>
// CHECK: llvm.func @relu(%{{.*}}: !llvm.ptr, %{{.*}}: i64, %{{.*}}: i64, %{{.*}}: !llvm.ptr)
func.func @workload(%x: tensor<?xf32> {tw.dims = ["d0"], tw.unit = 0 : i64}, %d0: index {tw.dims = ["d0"]})
    -> (tensor<?xf32> {tw.dims = ["d0"], tw.unit = 0 : i64}) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty(%d0) : tensor<?xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x : tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.maximumf %a, %zero : f32
    linalg.yield %r : f32
  } -> tensor<?xf32>
  return %y : tensor<?xf32>
}
