// RUN: tilewright opt %s --pass "define-arithmetic" | filecheck %s

// CHECK-LABEL: func.func @f
// CHECK-SAME: (%[[X:.+]]: i32, %[[N:.+]]: i32, %[[F:.+]]: f32)
func.func @f(%x: i32, %n: i32, %f: f32) -> (i32, i32, i32, i32, i32, i8, i32, f32) {
  %c3 = arith.constant 3 : i32
  // CHECK: %[[IN:.+]] = arith.cmpi ult, %[[N]], %{{.+}} : i32
  // CHECK: %[[LEFT:.+]] = arith.shli %[[X]], %[[N]] : i32
  // CHECK: %[[L:.+]] = arith.select %[[IN]], %[[LEFT]], %{{.+}} : i32
  %l = arith.shli %x, %n overflow<nsw> : i32
  // CHECK: %[[COUNT:.+]] = arith.minui %[[N]], %{{.+}} : i32
  // CHECK: %[[R:.+]] = arith.shrsi %[[X]], %[[COUNT]] : i32
  %r = arith.shrsi %x, %n exact : i32
  // CHECK: %[[K:.+]] = arith.shrui %[[X]], %{{.+}} : i32
  // CHECK-NEXT: arith.constant 1
  %k = arith.shrui %x, %c3 : i32
  // CHECK: %[[SPECIAL:.+]] = arith.cmpi ule
  // CHECK: %[[SAFE:.+]] = arith.select %[[SPECIAL]], %{{.+}}, %[[N]] : i32
  // CHECK: %[[Q0:.+]] = arith.divsi %[[X]], %[[SAFE]] : i32
  // CHECK: %[[PRODUCT:.+]] = arith.muli %[[X]], %[[N]] : i32
  // CHECK: %[[Q:.+]] = arith.select %[[SPECIAL]], %[[PRODUCT]], %[[Q0]] : i32
  %q = arith.divsi %x, %n : i32
  // CHECK: %[[M:.+]] = arith.remui %[[X]], %{{.+}} : i32
  %m = arith.remui %x, %c3 : i32
  // CHECK: %[[FITS:.+]] = arith.andi
  // CHECK: %[[WHOLE:.+]] = arith.fptosi %[[F]] : f32 to i32
  // CHECK: %[[CHOSEN:.+]] = arith.select %[[FITS]], %[[WHOLE]], %{{.+}} : i32
  // CHECK: %[[I:.+]] = arith.trunci %[[CHOSEN]] : i32 to i8
  %i = arith.fptosi %f : f32 to i8
  // CHECK: %[[A:.+]] = arith.addi %[[X]], %[[N]] : i32
  %a = arith.addi %x, %n overflow<nsw, nuw> : i32
  // CHECK: %[[G:.+]] = arith.addf %[[F]], %[[F]] fastmath<reassoc,contract> : f32
  %g = arith.addf %f, %f fastmath<nnan, reassoc, contract> : f32
  // CHECK: return %[[L]], %[[R]], %[[K]], %[[Q]], %[[M]], %[[I]], %[[A]], %[[G]]
  return %l, %r, %k, %q, %m, %i, %a, %g : i32, i32, i32, i32, i32, i8, i32, f32
}
