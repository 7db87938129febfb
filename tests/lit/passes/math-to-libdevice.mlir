// RUN: tilewright opt %s --pass "math-to-libdevice" | filecheck %s

// One call per lane; one declaration per function. fma is an instruction.
// CHECK-LABEL: llvm.func @kernel
// CHECK-COUNT-2: llvm.call @__nv_sinf(
// CHECK: llvm.call @__nv_pow(
// CHECK: math.fma
// CHECK: llvm.call @__nv_sinf(
// CHECK: llvm.func @__nv_sinf(f32) -> f32
// CHECK: llvm.func @__nv_pow(f64, f64) -> f64
// CHECK-NOT: llvm.func
llvm.func @kernel(%x: vector<2xf32>, %y: f64, %z: f32) -> f32 {
  %a = math.sin %x : vector<2xf32>
  %b = math.powf %y, %y : f64
  %c = math.fma %z, %z, %z : f32
  %d = math.sin %c : f32
  llvm.return %d : f32
}
