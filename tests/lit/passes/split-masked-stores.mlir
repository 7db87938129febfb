// RUN: tilewright opt %s --pass "split-masked-stores" | filecheck %s

// CHECK-LABEL: func.func @first
// CHECK-SAME: (%[[V:.+]]: vector<4xf32>, %[[P:.+]]: !llvm.ptr, %[[N:.+]]: i64)
// CHECK: %[[ALL:.+]] = arith.cmpi sge, %[[N]], %{{.+}} : i64
// CHECK: scf.if %[[ALL]] {
// CHECK-NEXT: llvm.store %[[V]], %[[P]] {alignment = 4 : i64} : vector<4xf32>
// CHECK-NEXT: } else {
// CHECK: arith.maxsi %[[N]]
// CHECK: %[[LEFT:.+]]:2 = scf.if %{{.+}} -> (vector<2xf32>, !llvm.ptr) {
// CHECK-NEXT: llvm.store %{{.+}}, %[[P]] {alignment = 4 : i64} : vector<2xf32>
// CHECK: scf.if
// CHECK: llvm.store %{{.+}}, %[[LEFT]]#1 {alignment = 4 : i64} : f32
// CHECK-NOT: masked.store
// CHECK-LABEL: func.func @others
func.func @first(%v: vector<4xf32>, %p: !llvm.ptr, %n: i64) {
  %zero = arith.constant 0 : i64
  %base = vector.broadcast %zero : i64 to vector<4xi64>
  %ramp = arith.constant dense<[0, 1, 2, 3]> : vector<4xi64>
  %lane = arith.addi %base, %ramp : vector<4xi64>
  %count = vector.broadcast %n : i64 to vector<4xi64>
  %mask = arith.cmpi slt, %lane, %count : vector<4xi64>
  llvm.intr.masked.store %v, %p, %mask {alignment = 4 : i32} : vector<4xf32>, vector<4xi1> into !llvm.ptr
  return
}

// Not the first lanes, or no power of two.
// CHECK-COUNT-3: llvm.intr.masked.store
func.func @others(%v: vector<4xf32>, %w: vector<3xf32>, %p: !llvm.ptr, %n: i64, %any: vector<4xi1>) {
  %count = vector.broadcast %n : i64 to vector<4xi64>
  %from = arith.constant dense<[1, 2, 3, 4]> : vector<4xi64>
  %later = arith.cmpi slt, %from, %count : vector<4xi64>
  llvm.intr.masked.store %v, %p, %later {alignment = 4 : i32} : vector<4xf32>, vector<4xi1> into !llvm.ptr
  llvm.intr.masked.store %v, %p, %any {alignment = 4 : i32} : vector<4xf32>, vector<4xi1> into !llvm.ptr
  %three = vector.broadcast %n : i64 to vector<3xi64>
  %ramp = arith.constant dense<[0, 1, 2]> : vector<3xi64>
  %odd = arith.cmpi slt, %ramp, %three : vector<3xi64>
  llvm.intr.masked.store %w, %p, %odd {alignment = 4 : i32} : vector<3xf32>, vector<3xi1> into !llvm.ptr
  return
}
