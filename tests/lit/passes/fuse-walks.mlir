// RUN: tilewright opt %s --pass "fuse" | filecheck %s
// RUN: tilewright opt %s --pass "fuse{partition=gain}" | filecheck %s

#states = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#rows = affine_map<(d0, d1, d2) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0, d1)>

// The sum over the states of each step, and the gate behind it, are in the kernel of the running reduction.
// CHECK-LABEL: func.func @summed
// CHECK: iterator_types = ["parallel", "parallel", "parallel", "reduction"]} {{.*}} attrs = {tw.region = 0 : i64}
// CHECK: iterator_types = ["parallel", "parallel", "reduction"]} {{.*}} attrs = {tw.region = 0 : i64}
// CHECK: iterator_types = ["parallel", "parallel"]} {{.*}} attrs = {tw.region = 0 : i64}
func.func @summed(%x: tensor<?x4x3xf32> {tw.dims = ["T", 4, 3]}, %z: tensor<?x4xf32> {tw.dims = ["T", 4]}) -> tensor<?x4xf32>
    attributes {tw.ranges = {T = [1, 8, 1]}} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %t = tensor.dim %x, %c0 : tensor<?x4x3xf32>
  %e = tensor.empty(%t) : tensor<?x4x3xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x4x3xf32>) -> tensor<?x4x3xf32>
  %h = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d3, d1, d2)>, affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%x : tensor<?x4x3xf32>) outs(%f : tensor<?x4x3xf32>) {
  ^bb0(%in: f32, %out: f32):
    %step = linalg.index 3 : index
    %along = linalg.index 0 : index
    %next = arith.addf %out, %in : f32
    %up = arith.cmpi sle, %step, %along : index
    %v = arith.select %up, %next, %out : f32
    linalg.yield %v : f32
  } -> tensor<?x4x3xf32>
  %r = tensor.empty(%t) : tensor<?x4xf32>
  %g = linalg.fill ins(%zero : f32) outs(%r : tensor<?x4xf32>) -> tensor<?x4xf32>
  %s = linalg.generic {indexing_maps = [#states, #rows], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%h : tensor<?x4x3xf32>) outs(%g : tensor<?x4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %v = arith.addf %out, %in : f32
    linalg.yield %v : f32
  } -> tensor<?x4xf32>
  %y = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel", "parallel"]}
      ins(%s, %z : tensor<?x4xf32>, tensor<?x4xf32>) outs(%r : tensor<?x4xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %v = arith.mulf %a, %b : f32
    linalg.yield %v : f32
  } -> tensor<?x4xf32>
  return %y : tensor<?x4xf32>
}

// What a step reads of a row is computed by the walk, once for all states of a place; of a value for each state there is a kernel.
// CHECK-LABEL: func.func @of_a_row
// CHECK: iterator_types = ["parallel", "parallel", "parallel"]} {{.*}} attrs = {tw.region = 0 : i64}
// CHECK: iterator_types = ["parallel", "parallel"]} {{.*}} attrs = {tw.region = 1 : i64}
// CHECK: math.exp
// CHECK: iterator_types = ["parallel", "parallel", "parallel", "reduction"]} {{.*}} attrs = {tw.region = 1 : i64}
// CHECK: iterator_types = ["parallel", "parallel", "reduction"]} {{.*}} attrs = {tw.region = 1 : i64}
func.func @of_a_row(%x: tensor<?x4x3xf32> {tw.dims = ["T", 4, 3]}, %d: tensor<?x4xf32> {tw.dims = ["T", 4]}) -> tensor<?x4xf32>
    attributes {tw.ranges = {T = [1, 8, 1]}} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %t = tensor.dim %x, %c0 : tensor<?x4x3xf32>
  %e = tensor.empty(%t) : tensor<?x4x3xf32>
  %r = tensor.empty(%t) : tensor<?x4xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x4x3xf32>) -> tensor<?x4x3xf32>
  %z = linalg.generic {indexing_maps = [#states, #states], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x : tensor<?x4x3xf32>) outs(%e : tensor<?x4x3xf32>) {
  ^bb0(%in: f32, %out: f32):
    %v = math.sin %in : f32
    linalg.yield %v : f32
  } -> tensor<?x4x3xf32>
  %p = linalg.generic {indexing_maps = [#row, #row], iterator_types = ["parallel", "parallel"]}
      ins(%d : tensor<?x4xf32>) outs(%r : tensor<?x4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %v = math.exp %in : f32
    linalg.yield %v : f32
  } -> tensor<?x4xf32>
  %h = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2, d3) -> (d3, d1, d2)>, affine_map<(d0, d1, d2, d3) -> (d3, d1)>,
                                        affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%z, %p : tensor<?x4x3xf32>, tensor<?x4xf32>) outs(%f : tensor<?x4x3xf32>) {
  ^bb0(%in: f32, %by: f32, %out: f32):
    %step = linalg.index 3 : index
    %along = linalg.index 0 : index
    %kept = arith.mulf %out, %by : f32
    %next = arith.addf %kept, %in : f32
    %up = arith.cmpi sle, %step, %along : index
    %v = arith.select %up, %next, %out : f32
    linalg.yield %v : f32
  } -> tensor<?x4x3xf32>
  %g = linalg.fill ins(%zero : f32) outs(%r : tensor<?x4xf32>) -> tensor<?x4xf32>
  %s = linalg.generic {indexing_maps = [#states, #rows], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%h : tensor<?x4x3xf32>) outs(%g : tensor<?x4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %v = arith.addf %out, %in : f32
    linalg.yield %v : f32
  } -> tensor<?x4xf32>
  return %s : tensor<?x4xf32>
}

// A sum over the steps themselves is not done as they go on.
// CHECK-LABEL: func.func @over_the_steps
// CHECK: iterator_types = ["parallel", "parallel", "reduction"]} {{.*}} attrs = {tw.region = 0 : i64}
// CHECK: iterator_types = ["parallel", "reduction"]} {{.*}} attrs = {tw.region = 1 : i64}
func.func @over_the_steps(%x: tensor<?x4xf32> {tw.dims = ["T", 4]}) -> tensor<4xf32> attributes {tw.ranges = {T = [1, 8, 1]}} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %t = tensor.dim %x, %c0 : tensor<?x4xf32>
  %e = tensor.empty(%t) : tensor<?x4xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x4xf32>) -> tensor<?x4xf32>
  %h = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel", "reduction"]} ins(%x : tensor<?x4xf32>) outs(%f : tensor<?x4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %step = linalg.index 2 : index
    %along = linalg.index 0 : index
    %next = arith.addf %out, %in : f32
    %up = arith.cmpi sle, %step, %along : index
    %v = arith.select %up, %next, %out : f32
    linalg.yield %v : f32
  } -> tensor<?x4xf32>
  %r = tensor.empty() : tensor<4xf32>
  %g = linalg.fill ins(%zero : f32) outs(%r : tensor<4xf32>) -> tensor<4xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0)>],
      iterator_types = ["parallel", "reduction"]} ins(%h : tensor<?x4xf32>) outs(%g : tensor<4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %v = arith.addf %out, %in : f32
    linalg.yield %v : f32
  } -> tensor<4xf32>
  return %s : tensor<4xf32>
}

// What reads the walk beside a sum along an axis that the walk does not have is with that sum.
// CHECK-LABEL: func.func @more_axes
// CHECK: iterator_types = ["parallel", "parallel", "reduction"]} {{.*}} attrs = {tw.region = 0 : i64}
// CHECK: iterator_types = ["parallel", "parallel", "reduction"]} {{.*}} attrs = {tw.region = 1 : i64}
// CHECK: iterator_types = ["parallel", "parallel"]} {{.*}} attrs = {tw.region = 1 : i64}
func.func @more_axes(%x: tensor<?x?xf32> {tw.dims = ["T", "N"]}) -> tensor<?x?xf32>
    attributes {tw.ranges = {T = [1, 8, 1], N = [1, 4, 1]}} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %t = tensor.dim %x, %c0 : tensor<?x?xf32>
  %n = tensor.dim %x, %c1 : tensor<?x?xf32>
  %e = tensor.empty(%t, %n) : tensor<?x?xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  %h = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d2, d1)>, #rows],
      iterator_types = ["parallel", "parallel", "reduction"]} ins(%x : tensor<?x?xf32>) outs(%f : tensor<?x?xf32>) {
  ^bb0(%in: f32, %out: f32):
    %step = linalg.index 2 : index
    %along = linalg.index 0 : index
    %next = arith.addf %out, %in : f32
    %up = arith.cmpi sle, %step, %along : index
    %v = arith.select %up, %next, %out : f32
    linalg.yield %v : f32
  } -> tensor<?x?xf32>
  %expanded = tensor.expand_shape %h [[0], [1, 2]] output_shape [%t, %n, 1] : tensor<?x?xf32> into tensor<?x?x1xf32>
  %s = linalg.generic {indexing_maps = [#states, #rows], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%expanded : tensor<?x?x1xf32>) outs(%f : tensor<?x?xf32>) {
  ^bb0(%in: f32, %out: f32):
    %v = arith.addf %out, %in : f32
    linalg.yield %v : f32
  } -> tensor<?x?xf32>
  %y = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel", "parallel"]}
      ins(%h, %s : tensor<?x?xf32>, tensor<?x?xf32>) outs(%e : tensor<?x?xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %v = arith.mulf %a, %b : f32
    linalg.yield %v : f32
  } -> tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}
