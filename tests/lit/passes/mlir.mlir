// RUN: tilewright opt %s --pass "mlir{pipeline=canonicalize,cse}" | filecheck %s
// RUN: not tilewright opt %s --pass "mlir{bogus=1}" 2>&1 | filecheck %s --check-prefix=BAD
// CHECK: func.func @main
// BAD: error: mlir has no option 'bogus'; its options: pipeline
func.func @main(%a: index) -> index { return %a : index }
