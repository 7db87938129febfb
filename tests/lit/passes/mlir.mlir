// RUN: tilewright opt %s --pass "mlir{pipeline=canonicalize,cse}" | filecheck %s
// RUN: tilewright opt %s --pass "mlir{pipeline=symbol-dce}" | filecheck %s --check-prefix=DEAD
// RUN: not tilewright opt %s --pass "mlir{pipeline=no-such-pass}" 2>&1 | filecheck %s --check-prefix=BAD

// Equal sums become one, and what nothing calls stays until symbol-dce.
// CHECK: func.func @main(%[[A:.*]]: index)
// CHECK-NEXT: %[[S:.*]] = arith.addi %[[A]], %[[A]] : index
// CHECK-NEXT: return %[[S]], %[[S]] : index, index
// CHECK: func.func private @unused
// DEAD: func.func @main
// DEAD-COUNT-2: arith.addi
// DEAD-NOT: @unused
// BAD: no-such-pass
func.func @main(%a: index) -> (index, index) {
  %s = arith.addi %a, %a : index
  %t = arith.addi %a, %a : index
  return %s, %t : index, index
}
func.func private @unused(%a: index) -> index { return %a : index }
