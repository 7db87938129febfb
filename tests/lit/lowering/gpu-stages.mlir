// Each stage of a GPU kernel alone: the family, its mathematics, 16-bit arithmetic, the LLVM dialect, PTX.
// RUN: tilewright opt %s --pass 'tile{config="gpu_pointwise{vec=2 threads=64}"},emit-micro-kernel{symbol=sigmoid}' -o %t && tilewright opt %t --pass "expand-math{keep-maximum=true keep-library=true}" -o %t.math && filecheck %s --check-prefix=KERNEL --input-file %t && filecheck %s --check-prefix=MATH --input-file %t.math && tilewright opt %t.math --pass "promote-bf16{keep-conversion=true},math-to-instructions,math-to-libdevice,lower-to-llvm{gpu=true}" -o %t.llvm && filecheck %s --check-prefix=DIALECT --input-file %t.llvm && tilewright opt %t.llvm --emit ptx --target cuda:sm_80 | filecheck %s --check-prefix=PTX

// KERNEL: tw.kernel = "{{.*}}sigmoid
// KERNEL: llvm.func @sigmoid({{.*}}nvvm.kernel
// KERNEL: math.exp
// KERNEL: math.sin
// MATH: llvm.func @sigmoid(
// MATH-NOT: math.exp
// MATH: math.fma
// MATH: math.sin
// DIALECT: llvm.func @sigmoid(
// DIALECT-NOT: scf.
// DIALECT-NOT: arith.
// DIALECT: llvm.intr.fma
// DIALECT: llvm.call @__nv_sinf
// PTX: .visible .entry sigmoid(
// PTX: fma.rn.f32
// PTX: st.global.v2
func.func @workload(%x: tensor<?xf32> {tw.dims = ["d0"], tw.unit = 0 : i64}, %d0: index {tw.dims = ["d0"]})
    -> (tensor<?xf32> {tw.dims = ["d0"], tw.unit = 0 : i64}) {
  %empty = tensor.empty(%d0) : tensor<?xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x : tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %o: f32):
    %e = math.exp %a : f32
    %s = math.sin %e : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  return %y : tensor<?xf32>
}
