// RUN: tilewright opt %s --pass 'tile{config="host_winograd{mr=4 nv=2 lanes=8 mc=8}"},emit-micro-kernel{symbol=conv}' | filecheck %s
// RUN: not tilewright opt %s --pass 'tile{config="host_winograd{nv=5}"},emit-micro-kernel{symbol=conv}' 2>&1 | filecheck %s --check-prefix=BAD
// RUN: not tilewright opt %s --pass 'tile{config="host_winograd{tile=2}"},emit-micro-kernel' 2>&1 | filecheck %s --check-prefix=OPTION

// BAD: panels of 32 filters cannot be read in blocks of 80
// OPTION: host_winograd has no option 'tile'

// Filters are transformed first: 9 values to 16, with halves.
// CHECK-LABEL: llvm.func internal @conv_body
// CHECK: scf.for
// CHECK: scf.for
// CHECK-COUNT-9: llvm.load {{.*}} -> vector<8xf32>
// CHECK-COUNT-16: llvm.store {{.*}} : vector<8xf32>
// Then chunks: the image, 16 values to 16 by sums and differences alone.
// CHECK: scf.for
// CHECK: scf.for
// CHECK-COUNT-16: llvm.load {{.*}} -> vector<8xf32>
// CHECK-NOT: mulf
// CHECK-COUNT-16: llvm.store {{.*}} : vector<8xf32>
// Blocks of 4 tiles by 2 vectors at each place, summed over channels.
// CHECK: %{{.*}}:8 = scf.for {{.*}} iter_args
// CHECK-COUNT-2: llvm.load {{.*}} -> vector<8xf32>
// CHECK-COUNT-8: llvm.intr.fmuladd
// CHECK: scf.yield
// The products give 4 pixels; those beyond the last row or column of 7 are not stored.
// CHECK-COUNT-16: llvm.load {{.*}} -> vector<8xf32>
// CHECK: llvm.store {{.*}} : vector<8xf32>
// CHECK: scf.if
// CHECK: llvm.store {{.*}} : vector<8xf32>

func.func @workload(%x: tensor<?x9x9x24xf32> {tw.dims = ["B", 9, 9, 24], tw.unit = 3},
                    %w: tensor<1x3x3x24x32xf32> {tw.dims = [1, 3, 3, 24, 32], tw.unit = 4, tw.panel = 32},
                    %b: index {tw.dims = ["B"]})
    -> (tensor<?x7x7x32xf32> {tw.dims = ["B", 7, 7, 32], tw.unit = 3}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%b) : tensor<?x7x7x32xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x7x7x32xf32>) -> tensor<?x7x7x32xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1 + d4, d2 + d5, d6)>,
                                        affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d3 floordiv 32, d4, d5, d6, d3 mod 32)>,
                                        affine_map<(d0, d1, d2, d3, d4, d5, d6) -> (d0, d1, d2, d3)>],
                       iterator_types = ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]}
    ins(%x, %w : tensor<?x9x9x24xf32>, tensor<1x3x3x24x32xf32>) outs(%z : tensor<?x7x7x32xf32>) {
  ^bb0(%i: f32, %f: f32, %s: f32):
    %p = arith.mulf %i, %f : f32
    %t = arith.addf %s, %p : f32
    linalg.yield %t : f32
  } -> tensor<?x7x7x32xf32>
  return %y : tensor<?x7x7x32xf32>
}
