// exp, erf and tanh are arithmetic in the kernel: no function of libdevice and no approximation of the hardware.
// RUN: tilewright opt %s --pass 'tile{config="gpu_pointwise{vec=1}"},emit-micro-kernel{symbol=three}' -o %t && tilewright opt %t --pass "expand-math{keep-maximum=true}" -o %t.math && filecheck %s --input-file %t.math && tilewright opt %t.math --pass "math-to-instructions,math-to-libdevice,lower-to-llvm{gpu=true}" -o %t.llvm && tilewright opt %t.llvm --emit ptx --target cuda:sm_80 | filecheck %s --check-prefix=PTX

// CHECK-NOT: {{math\.(exp|erf|tanh)}}
// CHECK: math.fma
// CHECK-NOT: {{math\.(exp|erf|tanh)}}

// PTX: .visible .entry three(
// PTX-NOT: {{__nv_|ex2\.approx|tanh\.approx|llvm\.}}
// PTX: fma.rn.f32
// PTX-NOT: {{__nv_|ex2\.approx|tanh\.approx|llvm\.}}
// PTX: ret;
func.func @workload(%x: tensor<?xf32> {tw.dims = ["d0"], tw.unit = 0 : i64}, %d0: index {tw.dims = ["d0"]})
    -> (tensor<?xf32> {tw.dims = ["d0"], tw.unit = 0 : i64}) {
  %empty = tensor.empty(%d0) : tensor<?xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x : tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %e = math.exp %a : f32
    %f = math.erf %e : f32
    %t = math.tanh %f : f32
    linalg.yield %t : f32
  } -> tensor<?xf32>
  return %y : tensor<?xf32>
}
