// RUN: tilewright opt %s --pass "promote-bf16" | filecheck %s
// RUN: tilewright opt %s --pass "promote-bf16{keep-conversion=true}" | filecheck %s --check-prefix=KEEP
// RUN: tilewright opt %s --pass "promote-bf16{keep-conversion=true flushes=true}" | filecheck %s --check-prefix=FLUSH

// CHECK-LABEL: func.func @add
// CHECK-COUNT-2: arith.extf %{{.+}} : vector<16xbf16> to vector<16xf32>
// CHECK: arith.addf %{{.+}} : vector<16xf32>
// CHECK: arith.cmpf uno
// CHECK: arith.trunci %{{.+}} : vector<16xi32> to vector<16xi16>
// CHECK: arith.bitcast %{{.+}} : vector<16xi16> to vector<16xbf16>
// KEEP-LABEL: func.func @add
// KEEP: arith.truncf %{{.+}} : vector<16xf32> to vector<16xbf16>
func.func @add(%a: vector<16xbf16>, %b: vector<16xbf16>) -> vector<16xbf16> {
  %0 = arith.addf %a, %b : vector<16xbf16>
  return %0 : vector<16xbf16>
}

// An instruction that takes denormal numbers for zeros rounds what was computed, not what is only converted.
// FLUSH-LABEL: func.func @converted
// FLUSH: arith.cmpf uno, %{{.+}} : vector<16xf32>
// FLUSH: arith.mulf
// FLUSH: arith.truncf %{{.+}} : vector<16xf32> to vector<16xbf16>
// FLUSH-NOT: arith.cmpf
// FLUSH: return
func.func @converted(%a: vector<16xf32>) -> (vector<16xbf16>, vector<16xbf16>) {
  %0 = arith.truncf %a : vector<16xf32> to vector<16xbf16>
  %1 = arith.mulf %a, %a : vector<16xf32>
  %2 = arith.truncf %1 : vector<16xf32> to vector<16xbf16>
  return %0, %2 : vector<16xbf16>, vector<16xbf16>
}

// FLUSH-LABEL: func.func @read_either_way
// FLUSH: scf.if
// FLUSH: arith.cmpf uno, %{{.+}} : vector<16xf32>
func.func @read_either_way(%c: i1, %a: vector<16xf32>, %b: vector<16xf32>) -> vector<16xbf16> {
  %r = scf.if %c -> vector<16xf32> {
    scf.yield %a : vector<16xf32>
  } else {
    scf.yield %b : vector<16xf32>
  }
  %0 = arith.truncf %r : vector<16xf32> to vector<16xbf16>
  return %0 : vector<16xbf16>
}

// f32 to f16 is an instruction everywhere.
// CHECK-LABEL: func.func @half
// CHECK: arith.mulf %{{.+}} : f32
// CHECK: arith.truncf %{{.+}} : f32 to f16
// CHECK: arith.cmpf olt, %{{.+}} : f32
func.func @half(%a: f16, %b: f16) -> (f16, i1) {
  %0 = arith.mulf %a, %b : f16
  %1 = arith.cmpf olt, %0, %b : f16
  return %0, %1 : f16, i1
}

// Rounded once: f64 to f32 is rounded to odd before.
// CHECK-LABEL: func.func @from_f64
// CHECK: arith.truncf %{{.+}} : f64 to f32
// CHECK: arith.ori
// CHECK: arith.truncf %{{.+}} : f32 to f16
// CHECK: arith.sitofp %{{.+}} : i32 to f64
func.func @from_f64(%a: f64, %i: i32) -> (f16, bf16) {
  %0 = arith.truncf %a : f64 to f16
  %1 = arith.sitofp %i : i32 to bf16
  return %0, %1 : f16, bf16
}

// CHECK-LABEL: func.func @reduction
// CHECK: vector.reduction <add>, %{{.+}} : vector<8xf32> into f32
func.func @reduction(%a: vector<8xf16>) -> f16 {
  %0 = vector.reduction <add>, %a : vector<8xf16> into f16
  return %0 : f16
}

// Other types stay.
// CHECK-LABEL: func.func @other
// CHECK-NEXT: arith.addf %{{.+}} : f32
// CHECK-NEXT: arith.truncf %{{.+}} : f64 to f32
func.func @other(%a: f32, %b: f64) -> (f32, f32) {
  %0 = arith.addf %a, %a : f32
  %1 = arith.truncf %b : f64 to f32
  return %0, %1 : f32, f32
}

// 8-bit floats are converted by integer arithmetic.
// CHECK-LABEL: func.func @eight
// CHECK-NOT: arith.extf
// CHECK-COUNT-2: arith.bitcast {{.+}} : f8E4M3FN to i8
// CHECK: arith.addf %{{.+}} : f32
// CHECK-NOT: arith.truncf
// CHECK: arith.trunci %{{.+}} : i32 to i8
// CHECK: arith.bitcast %{{.+}} : i8 to f8E4M3FN
// KEEP-LABEL: func.func @eight
// KEEP-NOT: arith.truncf
func.func @eight(%a: f8E4M3FN, %b: f8E4M3FN) -> f8E4M3FN {
  %0 = arith.addf %a, %b : f8E4M3FN
  return %0 : f8E4M3FN
}
