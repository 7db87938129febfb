// RUN: tilewright opt %s --pass "math-to-instructions" | filecheck %s

// Instructions keep their fast-math flags; what is a function stays.
// CHECK-LABEL: llvm.func @floats
// CHECK: llvm.intr.fma({{.*}}) : (vector<4xf32>, vector<4xf32>, vector<4xf32>) -> vector<4xf32>
// CHECK: llvm.intr.sqrt({{.*}}) {fastmathFlags = #llvm.fastmath<contract>} : (vector<4xf32>) -> vector<4xf32>
// CHECK: math.sin
llvm.func @floats(%x: vector<4xf32>) -> vector<4xf32> {
  %a = math.fma %x, %x, %x : vector<4xf32>
  %b = math.sqrt %a fastmath<contract> : vector<4xf32>
  %c = math.sin %b : vector<4xf32>
  llvm.return %c : vector<4xf32>
}

// CHECK-LABEL: llvm.func @integers
// CHECK: "llvm.intr.ctlz"({{.*}}) <{is_zero_poison = false}> : (i32) -> i32
llvm.func @integers(%x: i32) -> i32 {
  %y = math.ctlz %x : i32
  llvm.return %y : i32
}
