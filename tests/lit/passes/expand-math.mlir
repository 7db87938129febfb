// RUN: tilewright opt %s --pass "expand-math" | filecheck %s
// RUN: tilewright opt %s --pass "expand-math{approximate=true keep-maximum=true}" | filecheck %s --check-prefix=CHEAP
// RUN: tilewright opt %s --pass "expand-math{keep-library=true}" | filecheck %s --check-prefix=LIBRARY
// RUN: tilewright opt %s --pass "expand-math{keep-library=true ptx=true divide=true}" | filecheck %s --check-prefix=PTX

// A kernel: range reduction in two parts, a polynomial, the exponent by an integer addition, the ends by selects.
// CHECK-LABEL: llvm.func @exp
// CHECK-NOT: math.exp
// CHECK: math.fma
// CHECK: arith.subf
// CHECK: %[[HIGH:.+]] = math.fma
// CHECK: math.fma %{{.+}}, %{{.+}}, %[[HIGH]] : vector<16xf32>
// CHECK: arith.shli %{{.+}} : vector<16xi32>
// CHECK: arith.addi %{{.+}} : vector<16xi32>
// CHECK: arith.cmpf ole
// CHECK: arith.select
// CHECK: arith.cmpf olt
// CHECK: arith.select
// CHEAP-LABEL: llvm.func @exp
// CHEAP: arith.negf
llvm.func @exp(%x: vector<16xf32>) -> vector<16xf32> {
  %y = math.exp %x : vector<16xf32>
  llvm.return %y : vector<16xf32>
}

// One flag asks for the cheaper form: the reduction negates n instead of subtracting it twice.
// CHECK-LABEL: llvm.func @exp_afn
// CHECK: arith.negf
llvm.func @exp_afn(%x: f32) -> f32 {
  %y = math.exp %x fastmath<afn> : f32
  llvm.return %y : f32
}

// f16 and bf16 go through f32. No angle of f16 needs the branch that reduces large ones.
// CHECK-LABEL: func.func @small
// CHECK: arith.extf %{{.+}} : bf16 to f32
// CHECK-NOT: math.tanh
// CHECK: arith.divf %{{.+}} : f32
// CHECK: arith.truncf %{{.+}} : f32 to bf16
// CHECK: %[[WIDE:.+]] = arith.extf %{{.+}} : f16 to f32
// CHECK: math.fma %[[WIDE]]
// CHECK-NOT: scf.if
// CHECK: arith.truncf %{{.+}} : f32 to f16
func.func @small(%a: bf16, %b: f16) -> (bf16, f16) {
  %0 = math.tanh %a : bf16
  %1 = math.sin %b : f16
  return %0, %1 : bf16, f16
}

// Sines reduce an angle under a branch where it is large; a library for single lanes keeps them.
// CHECK-LABEL: func.func @angle
// CHECK: scf.if
// CHECK: arith.muli %{{.+}} : i64
// LIBRARY-LABEL: func.func @angle
// LIBRARY: math.sin
// LIBRARY: math.powf
// LIBRARY: arith.remf
// LIBRARY: math.exp %{{.+}} : f64
func.func @angle(%a: f32, %b: f64) -> (f32, f64) {
  %0 = math.sin %a : f32
  %1 = math.powf %0, %a : f32
  %2 = arith.remf %1, %0 : f32
  %3 = math.exp %b : f64
  return %2, %3 : f32, f64
}

// CHECK-LABEL: func.func @kept
// CHECK: math.sqrt
// CHECK: math.erf %{{.+}} : f64
// CHECK: arith.maxnumf
func.func @kept(%a: f32, %b: f64) -> (f32, f64) {
  %0 = math.sqrt %a : f32
  %2 = math.erf %b : f64
  %3 = arith.maxnumf %0, %a : f32
  return %3, %2 : f32, f64
}

// CHECK-LABEL: func.func @rsqrt
// CHECK: %[[ROOT:.+]] = math.sqrt %{{.+}} : f64
// CHECK: arith.divf %{{.+}}, %[[ROOT]] : f64
func.func @rsqrt(%a: f64) -> f64 {
  %0 = math.rsqrt %a : f64
  return %0 : f64
}

// With a constant, NaN can only come from the other operand: one compare.
// CHECK-LABEL: func.func @maximum
// CHECK: arith.cmpf ogt
// CHECK: arith.select
// CHECK: arith.cmpf uno
// CHECK: arith.select
// CHECK: arith.cmpf ogt
// CHECK: arith.select
// CHECK-NOT: arith.cmpf uno
// CHECK: return
// CHEAP-LABEL: func.func @maximum
// CHEAP-COUNT-2: arith.maximumf
func.func @maximum(%a: f32, %b: f32) -> f32 {
  %zero = arith.constant 0.0 : f32
  %0 = arith.maximumf %a, %b : f32
  %1 = arith.maximumf %0, %zero : f32
  return %1 : f32
}

// CHECK-LABEL: func.func @powers
// CHECK: arith.mulf
// CHECK: arith.mulf
// CHECK: arith.extf %{{.+}} : f32 to f64
// CHECK: math.floor
// CHECK: arith.muli
func.func @powers(%a: f32, %i: i32) -> (f32, f32, i32) {
  %three = arith.constant 3.0 : f32
  %half = arith.constant 5.0e-1 : f32
  %five = arith.constant 5 : i32
  %0 = math.powf %a, %three : f32
  %1 = math.powf %a, %half : f32
  %2 = math.ipowi %i, %five : i32
  return %0, %1, %2 : f32, f32, i32
}

// In a linalg body.
// CHECK-LABEL: func.func @body
// CHECK: linalg.generic
// CHECK-NOT: math.erf
// CHECK: linalg.yield
func.func @body(%a: tensor<?xf32>) -> tensor<?xf32> {
  %0 = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} outs(%a : tensor<?xf32>) {
  ^bb0(%x: f32):
    %1 = math.erf %x : f32
    linalg.yield %1 : f32
  } -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// A ratio whose divisor is near 1 is by PTX's reciprocal; with divide, what the model divides is by its full-range division.
// CHECK-LABEL: func.func @ratio
// CHECK: arith.divf
// CHECK: arith.divf
// PTX-LABEL: func.func @ratio
// PTX: nvvm.rcp.approx.ftz.f
// PTX: llvm.call_intrinsic "llvm.nvvm.div.full"
// PTX-COUNT-2: llvm.nvvm.div.full
// PTX: arith.divf %{{.+}} : f64
func.func @ratio(%a: f32, %v: vector<2xf32>, %d: f64) -> (f32, vector<2xf32>, f64) {
  %0 = math.erf %a : f32
  %1 = arith.divf %0, %a : f32
  %2 = arith.divf %v, %v : vector<2xf32>
  %3 = arith.divf %d, %d : f64
  return %1, %2, %3 : f32, vector<2xf32>, f64
}

// A quotient that is rounded or compared stays one that is rounded once: 6 / 3 is 2.
// PTX-LABEL: func.func @steps
// PTX-COUNT-3: arith.divf
// PTX: llvm.nvvm.div.full
// PTX: arith.truncf
// PTX-NOT: arith.divf
// PTX: return
func.func @steps(%a: f32, %b: f32, %h: f16) -> (f32, i1, f16, i32, f16) {
  %0 = arith.divf %a, %b : f32
  %1 = math.floor %0 : f32
  %2 = arith.divf %b, %a : f32
  %3 = arith.addf %2, %a : f32
  %4 = arith.cmpf oeq, %3, %b : f32
  %5 = arith.divf %a, %a : f32
  %6 = arith.fptosi %5 : f32 to i32
  %7 = arith.divf %b, %b : f32
  %8 = math.sqrt %7 : f32
  %9 = arith.truncf %8 : f32 to f16
  %10 = arith.divf %h, %h : f16
  return %1, %4, %9, %6, %10 : f32, i1, f16, i32, f16
}
