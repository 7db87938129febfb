// RUN: tilewright opt %s --pass 'tile{config="host_attention{mr=4 nv=2 lanes=8 keys=32 online=false mc=8}"},emit-micro-kernel{symbol=at}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_attention{mr=4 nv=2 lanes=8 keys=32 mc=8}"},emit-micro-kernel{symbol=at}' | filecheck %s --check-prefix=ONLINE

// More keys than fit one block are refused by a guard. The keys are transposed; the scores of 4 x 16, each of 8 products, go to the workspace;
// maxima of four rows, then exponentials of what lies below them, scaled; the values are divided by the sums before they are stored.
// CHECK: tw.kernel = {{.+}}\22guards\22:[\22max(
// CHECK-LABEL: llvm.func internal @at_body
// CHECK: vector.shuffle
// CHECK-COUNT-64: llvm.intr.fmuladd
// CHECK: :4 = scf.for {{.*}} iter_args({{.*}}) -> (vector<8xf32>, vector<8xf32>, vector<8xf32>, vector<8xf32>)
// CHECK: arith.cmpf ogt
// CHECK-COUNT-4: math.exp2 %{{.+}} {{.*}}tw.nonpositive} : vector<8xf32>
// CHECK: arith.divf
// CHECK: llvm.intr.fmuladd
// CHECK: arith.mulf
// CHECK: llvm.store
// CHECK: llvm.func @at(

// In blocks of keys, the maximum so far rescales what was summed.
// ONLINE: tw.kernel = {{.+}}\22guards\22:[]
// ONLINE-LABEL: llvm.func internal @at_body
// ONLINE: arith.constant 0xFF800000
// ONLINE: arith.cmpf oeq
// ONLINE: math.exp2 %{{.+}} {{.*}}tw.nonpositive} : vector<8xf32>
// ONLINE: arith.mulf
// ONLINE: arith.divf
#map = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
#map1 = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
#map2 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map4 = affine_map<(d0, d1, d2) -> (d0, d1)>
func.func @workload(%arg0: tensor<2x?x8xf32> {tw.dims = [2, "d0", 8], tw.unit = 2 : i64}, %arg1: tensor<2x?x8xf32> {tw.dims = [2, "d1", 8], tw.unit = 2 : i64}, %arg2: tensor<2x?x8xf32> {tw.dims = [2, "d1", 8], tw.unit = 2 : i64}, %arg3: index {tw.dims = ["d0"]}, %arg4: index {tw.dims = ["d1"]}) -> (tensor<2x?x8xf32> {tw.dims = [2, "d0", 8], tw.unit = 2 : i64}) attributes {tw.kind = "attention"} {
  %0 = tensor.empty(%arg3, %arg4) : tensor<2x?x?xf32>
  %cst = arith.constant 0.000000e+00 : f32
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x?x?xf32>) -> tensor<2x?x?xf32>
  %2 = linalg.batch_matmul indexing_maps = [#map, #map1, #map2] ins(%arg0, %arg1 : tensor<2x?x8xf32>, tensor<2x?x8xf32>) outs(%1 : tensor<2x?x?xf32>) -> tensor<2x?x?xf32>
  %cst_0 = arith.constant 5.000000e-01 : f32
  %3 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%2 : tensor<2x?x?xf32>) outs(%0 : tensor<2x?x?xf32>) {
  ^bb0(%in: f32, %out: f32):
    %15 = arith.mulf %in, %cst_0 : f32
    linalg.yield %15 : f32
  } -> tensor<2x?x?xf32>
  %4 = tensor.empty(%arg3) : tensor<2x?xf32>
  %cst_1 = arith.constant 0xFF800000 : f32
  %5 = linalg.fill ins(%cst_1 : f32) outs(%4 : tensor<2x?xf32>) -> tensor<2x?xf32>
  %6 = linalg.generic {indexing_maps = [#map3, #map4], iterator_types = ["parallel", "parallel", "reduction"]} ins(%3 : tensor<2x?x?xf32>) outs(%5 : tensor<2x?xf32>) {
  ^bb0(%in: f32, %out: f32):
    %15 = arith.maximumf %in, %out : f32
    linalg.yield %15 : f32
  } -> tensor<2x?xf32>
  %7 = linalg.generic {indexing_maps = [#map3, #map4, #map3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%3, %6 : tensor<2x?x?xf32>, tensor<2x?xf32>) outs(%0 : tensor<2x?x?xf32>) {
  ^bb0(%in: f32, %in_2: f32, %out: f32):
    %15 = arith.subf %in, %in_2 : f32
    linalg.yield %15 : f32
  } -> tensor<2x?x?xf32>
  %8 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%7 : tensor<2x?x?xf32>) outs(%0 : tensor<2x?x?xf32>) {
  ^bb0(%in: f32, %out: f32):
    %15 = math.exp %in : f32
    linalg.yield %15 : f32
  } -> tensor<2x?x?xf32>
  %9 = linalg.fill ins(%cst : f32) outs(%4 : tensor<2x?xf32>) -> tensor<2x?xf32>
  %10 = linalg.generic {indexing_maps = [#map3, #map4], iterator_types = ["parallel", "parallel", "reduction"]} ins(%8 : tensor<2x?x?xf32>) outs(%9 : tensor<2x?xf32>) {
  ^bb0(%in: f32, %out: f32):
    %15 = arith.addf %in, %out : f32
    linalg.yield %15 : f32
  } -> tensor<2x?xf32>
  %11 = linalg.generic {indexing_maps = [#map3, #map4, #map3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%8, %10 : tensor<2x?x?xf32>, tensor<2x?xf32>) outs(%0 : tensor<2x?x?xf32>) {
  ^bb0(%in: f32, %in_2: f32, %out: f32):
    %15 = arith.divf %in, %in_2 : f32
    linalg.yield %15 : f32
  } -> tensor<2x?x?xf32>
  %12 = tensor.empty(%arg3) : tensor<2x?x8xf32>
  %13 = linalg.fill ins(%cst : f32) outs(%12 : tensor<2x?x8xf32>) -> tensor<2x?x8xf32>
  %14 = linalg.batch_matmul ins(%11, %arg2 : tensor<2x?x?xf32>, tensor<2x?x8xf32>) outs(%13 : tensor<2x?x8xf32>) -> tensor<2x?x8xf32>
  return %14 : tensor<2x?x8xf32>
}
