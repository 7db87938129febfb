// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=4 nv=2 lanes=8 mc=8 taps=true}"},emit-micro-kernel{symbol=conv}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=4 nv=2 lanes=8 mc=8}"},emit-micro-kernel{symbol=conv}' | filecheck %s --check-prefix=WHOLE

// The sums are cleared; around the loop over rows are those over the window, around the sums of a block only that over channels.
// CHECK-LABEL: llvm.func internal @conv_body
// CHECK: scf.for
// CHECK: llvm.store %cst{{.*}} : vector<8xf32>
// CHECK: scf.for
// CHECK: arith.maxsi
// CHECK: scf.for
// CHECK: arith.maxsi
// CHECK: scf.for
// CHECK: :8 = scf.for %{{.*}} = %{{.*}} to %{{.*}} step %{{.*}} iter_args
// CHECK-NOT: iter_args
// CHECK: scf.yield
// CHECK: llvm.load {{.*}} -> vector<8xf32>
// CHECK-NEXT: {{.*}}arith.

// Whole windows: the sums of a block are carried through three loops.
// WHOLE-LABEL: llvm.func internal @conv_body
// WHOLE: :8 = scf.for
// WHOLE: :8 = scf.for
// WHOLE: :8 = scf.for

func.func @workload(%x: tensor<?x9x9x24xf32> {tw.dims = ["B", 9, 9, 24], tw.unit = 3, tw.zeros = [0, 0, 1, 1, 1, 1, 0, 0]},
                    %w: tensor<3x3x24x32xf32> {tw.dims = [3, 3, 24, 32], tw.unit = 3}, %b: index {tw.dims = ["B"]})
    -> (tensor<?x7x7x32xf32> {tw.dims = ["B", 7, 7, 32], tw.unit = 3}) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%b) : tensor<?x7x7x32xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<?x7x7x32xf32>) -> tensor<?x7x7x32xf32>
  %y = linalg.conv_2d_nhwc_hwcf ins(%x, %w : tensor<?x9x9x24xf32>, tensor<3x3x24x32xf32>)
    outs(%z : tensor<?x7x7x32xf32>) -> tensor<?x7x7x32xf32>
  return %y : tensor<?x7x7x32xf32>
}
