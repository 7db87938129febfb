// RUN: tilewright opt %s --pass 'tile{config="host_window{pixels=2 nv=1 lanes=8}"},emit-micro-kernel{symbol=pool}' | filecheck %s
// RUN: not tilewright opt %s --pass 'tile{config="host_window{rows=2}"},emit-micro-kernel' 2>&1 | filecheck %s --check-prefix=OPTION

// OPTION: host_window has no option 'rows'

// Vectors of channels: the rows of a window in a loop that leaves out those in the padding; pixels at the border one by one.
// CHECK-LABEL: llvm.func internal @pool_body
// CHECK: scf.for
// CHECK: arith.maxsi
// Two pixels a step apart read five columns between them, of which they share one, each once.
// CHECK: %{{.*}}:2 = scf.for {{.*}} iter_args
// CHECK-COUNT-5: llvm.load {{.*}} -> vector<8xf32>
// CHECK-NOT: llvm.load {{.*}} -> vector<8xf32>
// CHECK: scf.yield
// CHECK-COUNT-2: llvm.store {{.*}} : vector<8xf32>

func.func @workload(%x: tensor<?x9x9x24xf32> {tw.dims = ["B", 9, 9, 24], tw.unit = 3}, %b: index {tw.dims = ["B"]})
    -> (tensor<?x5x5x24xf32> {tw.dims = ["B", 5, 5, 24], tw.unit = 3}) {
  %low = arith.constant 0xFF800000 : f32
  %p = tensor.pad %x low[0, 1, 1, 0] high[0, 1, 1, 0] {
  ^bb0(%i: index, %j: index, %k: index, %l: index):
    tensor.yield %low : f32
  } : tensor<?x9x9x24xf32> to tensor<?x11x11x24xf32>
  %w = tensor.empty() : tensor<3x3xf32>
  %e = tensor.empty(%b) : tensor<?x5x5x24xf32>
  %z = linalg.fill ins(%low : f32) outs(%e : tensor<?x5x5x24xf32>) -> tensor<?x5x5x24xf32>
  %y = linalg.pooling_nhwc_max {dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>}
      ins(%p, %w : tensor<?x11x11x24xf32>, tensor<3x3xf32>) outs(%z : tensor<?x5x5x24xf32>) -> tensor<?x5x5x24xf32>
  return %y : tensor<?x5x5x24xf32>
}
