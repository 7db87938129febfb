// RUN: tilewright opt %s --pass "integer-products" | filecheck %s
// RUN: tilewright opt %s --pass "integer-products{apart=true}" | filecheck %s --check-prefix=APART

// The bytes are multiplied; the zero point of the rows takes the sums of the columns, a constant here, from the result.
// CHECK-LABEL: func.func @integers
// CHECK-SAME: %[[X:[^:]+]]: tensor<?x8xi8> {{.*}} %[[W:[^:]+]]: tensor<8x2xi8>
// CHECK: %[[TOTAL:.+]] = linalg.generic {{.*}} ins(%[[X]], %[[W]] : tensor<?x8xi8>, tensor<8x2xi8>)
// CHECK: arith.extui
// CHECK: arith.extsi
// CHECK: %[[SUMS:.+]] = linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]} ins(%[[W]] : tensor<8x2xi8>)
// CHECK: linalg.generic {{.*}} ins(%[[TOTAL]], %[[SUMS]], %{{.+}} : tensor<?x2xi32>, tensor<2xi32>, tensor<i32>)
// CHECK-NOT: linalg.matmul
#id = affine_map<(d0, d1) -> (d0, d1)>
#one = affine_map<(d0, d1) -> ()>
func.func @integers(%x: tensor<?x8xi8> {tw.dims = ["M", 8]}, %w: tensor<8x2xi8> {tw.constant, tw.dims = [8, 2]},
                    %z: tensor<i32> {tw.dims = []}) -> tensor<?x2xi32> {
  %c0 = arith.constant 0 : index
  %i0 = arith.constant 0 : i32
  %m = tensor.dim %x, %c0 : tensor<?x8xi8>
  %e = tensor.empty(%m) : tensor<?x8xi32>
  %a = linalg.generic {indexing_maps = [#id, #one, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %z : tensor<?x8xi8>, tensor<i32>) outs(%e : tensor<?x8xi32>) {
  ^bb0(%v: i8, %s: i32, %o: i32):
    %t = arith.extui %v : i8 to i32
    %r = arith.subi %t, %s : i32
    linalg.yield %r : i32
  } -> tensor<?x8xi32>
  %f = tensor.empty() : tensor<8x2xi32>
  %b = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%w : tensor<8x2xi8>) outs(%f : tensor<8x2xi32>) {
  ^bb0(%v: i8, %o: i32):
    %t = arith.extsi %v : i8 to i32
    linalg.yield %t : i32
  } -> tensor<8x2xi32>
  %g = tensor.empty(%m) : tensor<?x2xi32>
  %i = linalg.fill ins(%i0 : i32) outs(%g : tensor<?x2xi32>) -> tensor<?x2xi32>
  %y = linalg.matmul ins(%a, %b : tensor<?x8xi32>, tensor<8x2xi32>) outs(%i : tensor<?x2xi32>) -> tensor<?x2xi32>
  return %y : tensor<?x2xi32>
}

// Two signed factors: the highest bit of the rows is turned, since the sums of the columns cost nothing at run time.
// APART-LABEL: func.func @signed
// APART-SAME: %[[X:[^:]+]]: tensor<4x8xi8> {{.*}} %[[W:[^:]+]]: tensor<8x2xi8>
// APART: %[[TURNED:.+]] = linalg.generic {{.*}} ins(%[[X]] : tensor<4x8xi8>)
// APART: arith.xori
// APART: linalg.generic {{.*}} ins(%[[TURNED]], %[[W]] : tensor<4x8xi8>, tensor<8x2xi8>)
// APART: arith.extui
// APART: arith.extsi
// APART: linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]} ins(%[[W]] : tensor<8x2xi8>)
// CHECK-LABEL: func.func @signed
// CHECK: linalg.matmul
func.func @signed(%x: tensor<4x8xi8> {tw.dims = [4, 8]}, %w: tensor<8x2xi8> {tw.constant, tw.dims = [8, 2]}) -> tensor<4x2xi32> {
  %i0 = arith.constant 0 : i32
  %g = tensor.empty() : tensor<4x2xi32>
  %i = linalg.fill ins(%i0 : i32) outs(%g : tensor<4x2xi32>) -> tensor<4x2xi32>
  %y = linalg.matmul ins(%x, %w : tensor<4x8xi8>, tensor<8x2xi8>) outs(%i : tensor<4x2xi32>) -> tensor<4x2xi32>
  return %y : tensor<4x2xi32>
}
