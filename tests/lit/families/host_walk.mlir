// RUN: tilewright opt %s --pass 'tile{config="generic{lanes=8 chunk=256}"},emit-micro-kernel{symbol=scan}' | filecheck %s

// A selective scan: rates are put into the workspace as r = a log2(e) / 2 once, before the steps; each step computes 2^(2 d r), by
// which the state is multiplied where the rest is added. No step asks whether it is the first one. 
// CHECK: llvm.func internal @scan_body(
// CHECK: math.fma
// CHECK: llvm.store
// CHECK: llvm.intr.prefetch
// CHECK-NOT: arith.cmpi eq
// CHECK: %[[PRODUCT:.*]] = arith.mulf %{{.*}} fastmath<contract> : vector<8xf32>
// CHECK: %[[DECAY:.*]] = math.exp2 %[[PRODUCT]] {tw.half_product} : vector<8xf32>
// CHECK: arith.mulf %{{.*}} fastmath<contract> : vector<8xf32>
// CHECK: %[[NEW:.*]] = arith.mulf %{{.*}} fastmath<contract> : vector<8xf32>
// CHECK: math.fma %[[DECAY]], %{{.*}}, %[[NEW]] : vector<8xf32>
// CHECK: arith.addf %{{.*}} fastmath<contract> : vector<8xf32>
#map = affine_map<(d0, d1, d2, d3) -> (d3, d1)>
#map1 = affine_map<(d0, d1, d2, d3) -> (d1, d2)>
#map2 = affine_map<(d0, d1, d2, d3) -> (d3, d2)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map4 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map5 = affine_map<(d0, d1, d2) -> (d0, d2)>
#map6 = affine_map<(d0, d1, d2) -> (d0, d1)>
func.func @workload(%d: tensor<?x256xf32> {tw.dims = ["T", 256], tw.unit = 1}, %rate: tensor<256x16xf32> {tw.dims = [256, 16], tw.unit = 1},
    %u: tensor<?x256xf32> {tw.dims = ["T", 256], tw.unit = 1}, %b: tensor<?x16xf32> {tw.dims = ["T", 16], tw.unit = 1},
    %c: tensor<?x16xf32> {tw.dims = ["T", 16], tw.unit = 1}, %T: index {tw.dims = ["T"]})
    -> (tensor<?x256xf32> {tw.dims = ["T", 256], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %e = tensor.empty(%T) : tensor<?x256x16xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x256x16xf32>) -> tensor<?x256x16xf32>
  %h = linalg.generic {indexing_maps = [#map, #map1, #map, #map2, #map3], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%d, %rate, %u, %b : tensor<?x256xf32>, tensor<256x16xf32>, tensor<?x256xf32>, tensor<?x16xf32>) outs(%f : tensor<?x256x16xf32>) {
  ^bb0(%delta: f32, %a: f32, %x: f32, %in: f32, %out: f32):
    %step = linalg.index 3 : index
    %along = linalg.index 0 : index
    %first = arith.cmpi eq, %step, %c0 : index
    %state = arith.select %first, %zero, %out : f32
    %p = arith.mulf %delta, %a : f32
    %decay = math.exp %p {tw.nonpositive} : f32
    %kept = arith.mulf %decay, %state : f32
    %w = arith.mulf %delta, %x : f32
    %new = arith.mulf %w, %in : f32
    %next = arith.addf %kept, %new : f32
    %up = arith.cmpi sle, %step, %along : index
    %v = arith.select %up, %next, %out : f32
    linalg.yield %v : f32
  } -> tensor<?x256x16xf32>
  %m = linalg.generic {indexing_maps = [#map4, #map5, #map4], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%h, %c : tensor<?x256x16xf32>, tensor<?x16xf32>) outs(%e : tensor<?x256x16xf32>) {
  ^bb0(%s: f32, %r: f32, %out: f32):
    %v = arith.mulf %s, %r : f32
    linalg.yield %v : f32
  } -> tensor<?x256x16xf32>
  %rows = tensor.empty(%T) : tensor<?x256xf32>
  %g = linalg.fill ins(%zero : f32) outs(%rows : tensor<?x256xf32>) -> tensor<?x256xf32>
  %y = linalg.generic {indexing_maps = [#map4, #map6], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%m : tensor<?x256x16xf32>) outs(%g : tensor<?x256xf32>) {
  ^bb0(%s: f32, %out: f32):
    %v = arith.addf %out, %s : f32
    linalg.yield %v : f32
  } -> tensor<?x256xf32>
  return %y : tensor<?x256xf32>
}
