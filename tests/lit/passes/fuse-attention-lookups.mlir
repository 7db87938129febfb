// RUN: tilewright opt %s --pass "fuse,fuse-attention{lookups=true}" | filecheck %s
// RUN: tilewright opt %s --pass "fuse,fuse-attention" | filecheck %s --check-prefix=APART

// Keys that a table names, 4 a page, are read through it, and a mask of lengths is computed in the region of the attention.
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic {{.*}}outs({{.*}} : tensor<2x12x4xf32>) attrs = {tw.region = 0 : i64}
// CHECK: arith.divui
// CHECK: tensor.extract %arg3[{{.*}}] : tensor<2x3xi32>
// CHECK: tensor.extract %arg1[{{.*}}] : tensor<9x4x4xf32>
// CHECK: arith.cmpi slt
// CHECK: arith.select
// CHECK-NOT: tw.region = 1
// APART: attrs = {tw.region = 0 : i64}
// APART: tensor.extract %arg1[{{.*}}] : tensor<9x4x4xf32>
// APART: linalg.batch_matmul {{.*}}{tw.region = 1 : i64}

#map = affine_map<(d0, d1, d2, d3) -> (d0, d1)>
#map1 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map2 = affine_map<(d0) -> (d0)>
#map3 = affine_map<(d0, d1) -> (d1)>
#map4 = affine_map<(d0, d1) -> (d0)>
#map5 = affine_map<(d0, d1) -> (d0, d1)>
#map6 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
#map7 = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
#map8 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map9 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map10 = affine_map<(d0, d1, d2) -> (d0, d2)>
#map11 = affine_map<(d0, d1, d2) -> (d0, d1)>
func.func @main(%arg0: tensor<2x8x4xf32>, %arg1: tensor<9x4x4xf32>, %arg2: tensor<2x12x5xf32>, %arg3: tensor<2x3xi32>, %arg4: tensor<2xi32>) -> (tensor<2x8x5xf32> {tw.name = "result0"}) {
  %cst = arith.constant 0.000000e+00 : f32
  %cst_0 = arith.constant 0xFF800000 : f32
  %0 = tensor.empty() : tensor<2x3x4x4xf32>
  %1 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%arg3 : tensor<2x3xi32>) outs(%0 : tensor<2x3x4x4xf32>) {
  ^bb0(%in: i32, %out: f32):
    %21 = linalg.index 2 : index
    %22 = linalg.index 3 : index
    %23 = arith.index_cast %in : i32 to index
    %extracted = tensor.extract %arg1[%23, %21, %22] : tensor<9x4x4xf32>
    linalg.yield %extracted : f32
  } -> tensor<2x3x4x4xf32>
  %collapsed = tensor.collapse_shape %1 [[0], [1, 2], [3]] : tensor<2x3x4x4xf32> into tensor<2x12x4xf32>
  %2 = tensor.empty() : tensor<12xi32>
  %3 = linalg.generic {indexing_maps = [#map2], iterator_types = ["parallel"]} outs(%2 : tensor<12xi32>) {
  ^bb0(%out: i32):
    %21 = linalg.index 0 : index
    %22 = arith.index_cast %21 : index to i64
    %23 = arith.trunci %22 : i64 to i32
    linalg.yield %23 : i32
  } -> tensor<12xi32>
  %4 = tensor.empty() : tensor<2x12xi1>
  %5 = linalg.generic {indexing_maps = [#map3, #map4, #map5], iterator_types = ["parallel", "parallel"]} ins(%3, %arg4 : tensor<12xi32>, tensor<2xi32>) outs(%4 : tensor<2x12xi1>) {
  ^bb0(%in: i32, %in_1: i32, %out: i1):
    %21 = arith.cmpi slt, %in, %in_1 : i32
    linalg.yield %21 : i1
  } -> tensor<2x12xi1>
  %6 = tensor.empty() : tensor<2x8x12xf32>
  %7 = linalg.fill ins(%cst : f32) outs(%6 : tensor<2x8x12xf32>) -> tensor<2x8x12xf32>
  %8 = linalg.batch_matmul indexing_maps = [#map6, #map7, #map8] ins(%arg0, %collapsed : tensor<2x8x4xf32>, tensor<2x12x4xf32>) outs(%7 : tensor<2x8x12xf32>) -> tensor<2x8x12xf32>
  %9 = linalg.generic {indexing_maps = [#map9, #map10, #map9], iterator_types = ["parallel", "parallel", "parallel"]} ins(%8, %5 : tensor<2x8x12xf32>, tensor<2x12xi1>) outs(%6 : tensor<2x8x12xf32>) {
  ^bb0(%in: f32, %in_1: i1, %out: f32):
    %21 = arith.select %in_1, %in, %cst_0 : f32
    linalg.yield %21 : f32
  } -> tensor<2x8x12xf32>
  %10 = tensor.empty() : tensor<2x8xf32>
  %11 = linalg.fill ins(%cst_0 : f32) outs(%10 : tensor<2x8xf32>) -> tensor<2x8xf32>
  %12 = linalg.generic {indexing_maps = [#map9, #map11], iterator_types = ["parallel", "parallel", "reduction"]} ins(%9 : tensor<2x8x12xf32>) outs(%11 : tensor<2x8xf32>) {
  ^bb0(%in: f32, %out: f32):
    %21 = arith.maximumf %in, %out : f32
    linalg.yield %21 : f32
  } -> tensor<2x8xf32>
  %13 = linalg.generic {indexing_maps = [#map9, #map11, #map9], iterator_types = ["parallel", "parallel", "parallel"]} ins(%9, %12 : tensor<2x8x12xf32>, tensor<2x8xf32>) outs(%6 : tensor<2x8x12xf32>) {
  ^bb0(%in: f32, %in_1: f32, %out: f32):
    %21 = arith.subf %in, %in_1 : f32
    linalg.yield %21 : f32
  } -> tensor<2x8x12xf32>
  %14 = linalg.generic {indexing_maps = [#map9, #map9], iterator_types = ["parallel", "parallel", "parallel"]} ins(%13 : tensor<2x8x12xf32>) outs(%6 : tensor<2x8x12xf32>) {
  ^bb0(%in: f32, %out: f32):
    %21 = math.exp %in : f32
    linalg.yield %21 : f32
  } -> tensor<2x8x12xf32>
  %15 = linalg.fill ins(%cst : f32) outs(%10 : tensor<2x8xf32>) -> tensor<2x8xf32>
  %16 = linalg.generic {indexing_maps = [#map9, #map11], iterator_types = ["parallel", "parallel", "reduction"]} ins(%14 : tensor<2x8x12xf32>) outs(%15 : tensor<2x8xf32>) {
  ^bb0(%in: f32, %out: f32):
    %21 = arith.addf %in, %out : f32
    linalg.yield %21 : f32
  } -> tensor<2x8xf32>
  %17 = linalg.generic {indexing_maps = [#map9, #map11, #map9], iterator_types = ["parallel", "parallel", "parallel"]} ins(%14, %16 : tensor<2x8x12xf32>, tensor<2x8xf32>) outs(%6 : tensor<2x8x12xf32>) {
  ^bb0(%in: f32, %in_1: f32, %out: f32):
    %21 = arith.divf %in, %in_1 : f32
    linalg.yield %21 : f32
  } -> tensor<2x8x12xf32>
  %18 = tensor.empty() : tensor<2x8x5xf32>
  %19 = linalg.fill ins(%cst : f32) outs(%18 : tensor<2x8x5xf32>) -> tensor<2x8x5xf32>
  %20 = linalg.batch_matmul ins(%17, %arg2 : tensor<2x8x12xf32>, tensor<2x12x5xf32>) outs(%19 : tensor<2x8x5xf32>) -> tensor<2x8x5xf32>
  return %20 : tensor<2x8x5xf32>
}
