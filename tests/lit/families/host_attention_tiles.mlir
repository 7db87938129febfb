// RUN: tilewright opt %s --pass 'tile{config="host_attention{mr=16 nv=2 lanes=16 keys=32 online=false mc=16 pairs=true tiles=true}"},emit-micro-kernel{symbol=at}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_attention{mr=4 nv=2 lanes=8 keys=32 mc=8 pairs=true}"},emit-micro-kernel{symbol=at}' | filecheck %s --check-prefix=PAIRS
// RUN: tilewright opt %s --pass 'tile{config="host_attention{mr=4 nv=1 lanes=8 keys=32 mc=4 direct=true pairs=true}"},emit-micro-kernel{symbol=at}' | filecheck %s --check-prefix=DIRECT

// Words of keys are transposed; two tiles of scores go to the workspace, exponentials are rounded, and of 32 or 16 keys times values.
// CHECK: tw.kernel = {{.+}}\22tiles\22:true
// CHECK-LABEL: llvm.func internal @at_body
// CHECK: "llvm.x86.ldtilecfg"
// CHECK: vector.shuffle {{.*}} : vector<16xi32>, vector<16xi32>
// CHECK-COUNT-2: "llvm.x86.tilezero"
// CHECK: scf.for
// CHECK: "llvm.x86.tileloadd64"
// CHECK-COUNT-2: "llvm.x86.tdpbf16ps"
// CHECK-COUNT-2: "llvm.x86.tilestored64"
// CHECK: math.exp2 {{.*}} : vector<16xf32>
// CHECK: "llvm.x86.avx512bf16.cvtneps2bf16.512"
// CHECK: "llvm.x86.tilezero"
// CHECK-COUNT-2: "llvm.x86.tdpbf16ps"
// CHECK: arith.divf
// CHECK: "llvm.x86.tilerelease"

// PAIRS-LABEL: llvm.func internal @at_body
// PAIRS: vector.shuffle {{.*}} : vector<8xi32>, vector<8xi32>
// PAIRS: "llvm.x86.avx512bf16.dpbf16ps.256"
// PAIRS: "llvm.x86.avx512bf16.cvtneps2bf16.256"
// PAIRS: "llvm.x86.avx512bf16.dpbf16ps.256"

// Neither keys nor values are copied: no word is stored.
// DIRECT-LABEL: llvm.func internal @at_body
// DIRECT-NOT: llvm.store {{.*}} : vector<8xi32>
// DIRECT: "llvm.x86.avx512bf16.dpbf16ps.256"
// DIRECT-NOT: llvm.store {{.*}} : vector<8xi32>
// DIRECT: llvm.func @at(
#map = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
#map1 = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
#map2 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map4 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map5 = affine_map<(d0, d1, d2, d3) -> (d0, d3, d2)>
func.func @workload(%arg0: tensor<?x?x8xbf16> {tw.dims = ["d0", "d1", 8], tw.unit = 2 : i64}, %arg1: tensor<?x?x8xbf16> {tw.dims = ["d0", "d2", 8], tw.unit = 2 : i64}, %arg2: tensor<?x?x8xbf16> {tw.dims = ["d0", "d2", 8], tw.unit = 2 : i64}, %arg3: index {tw.dims = ["d0"]}, %arg4: index {tw.dims = ["d1"]}, %arg5: index {tw.dims = ["d2"]}) -> (tensor<?x?x8xbf16> {tw.dims = ["d0", "d1", 8], tw.unit = 2 : i64}) attributes {tw.kind = "attention"} {
  %0 = tensor.empty(%arg3, %arg4, %arg5) : tensor<?x?x?xf32>
  %cst = arith.constant 0.000000e+00 : f32
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %2 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<?x?x8xbf16>, tensor<?x?x8xbf16>) outs(%1 : tensor<?x?x?xf32>) {
  ^bb0(%in: bf16, %in_2: bf16, %out: f32):
    %19 = arith.extf %in : bf16 to f32
    %20 = arith.extf %in_2 : bf16 to f32
    %21 = arith.mulf %19, %20 : f32
    %22 = arith.addf %out, %21 : f32
    linalg.yield %22 : f32
  } -> tensor<?x?x?xf32>
  %cst_0 = arith.constant 2.500000e-01 : f32
  %3 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%2 : tensor<?x?x?xf32>) outs(%0 : tensor<?x?x?xf32>) {
  ^bb0(%in: f32, %out: f32):
    %19 = arith.mulf %in, %cst_0 : f32
    linalg.yield %19 : f32
  } -> tensor<?x?x?xf32>
  %4 = tensor.empty(%arg3, %arg4) : tensor<?x?xf32>
  %cst_1 = arith.constant 0xFF800000 : f32
  %5 = linalg.fill ins(%cst_1 : f32) outs(%4 : tensor<?x?xf32>) -> tensor<?x?xf32>
  %6 = linalg.generic {indexing_maps = [#map3, #map4], iterator_types = ["parallel", "parallel", "reduction"]} ins(%3 : tensor<?x?x?xf32>) outs(%5 : tensor<?x?xf32>) {
  ^bb0(%in: f32, %out: f32):
    %19 = arith.maximumf %in, %out : f32
    linalg.yield %19 : f32
  } -> tensor<?x?xf32>
  %7 = linalg.generic {indexing_maps = [#map3, #map4, #map3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%3, %6 : tensor<?x?x?xf32>, tensor<?x?xf32>) outs(%0 : tensor<?x?x?xf32>) {
  ^bb0(%in: f32, %in_2: f32, %out: f32):
    %19 = arith.subf %in, %in_2 : f32
    linalg.yield %19 : f32
  } -> tensor<?x?x?xf32>
  %8 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%7 : tensor<?x?x?xf32>) outs(%0 : tensor<?x?x?xf32>) {
  ^bb0(%in: f32, %out: f32):
    %19 = math.exp %in : f32
    linalg.yield %19 : f32
  } -> tensor<?x?x?xf32>
  %9 = linalg.fill ins(%cst : f32) outs(%4 : tensor<?x?xf32>) -> tensor<?x?xf32>
  %10 = linalg.generic {indexing_maps = [#map3, #map4], iterator_types = ["parallel", "parallel", "reduction"]} ins(%8 : tensor<?x?x?xf32>) outs(%9 : tensor<?x?xf32>) {
  ^bb0(%in: f32, %out: f32):
    %19 = arith.addf %in, %out : f32
    linalg.yield %19 : f32
  } -> tensor<?x?xf32>
  %11 = linalg.generic {indexing_maps = [#map3, #map4, #map3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%8, %10 : tensor<?x?x?xf32>, tensor<?x?xf32>) outs(%0 : tensor<?x?x?xf32>) {
  ^bb0(%in: f32, %in_2: f32, %out: f32):
    %19 = arith.divf %in, %in_2 : f32
    linalg.yield %19 : f32
  } -> tensor<?x?x?xf32>
  %12 = tensor.empty(%arg3, %arg4, %arg5) : tensor<?x?x?xbf16>
  %13 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%11 : tensor<?x?x?xf32>) outs(%12 : tensor<?x?x?xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %19 = arith.truncf %in : f32 to bf16
    linalg.yield %19 : bf16
  } -> tensor<?x?x?xbf16>
  %14 = tensor.empty(%arg3, %arg4) : tensor<?x?x8xf32>
  %15 = linalg.fill ins(%cst : f32) outs(%14 : tensor<?x?x8xf32>) -> tensor<?x?x8xf32>
  %16 = linalg.generic {indexing_maps = [#map, #map5, #map2], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%13, %arg2 : tensor<?x?x?xbf16>, tensor<?x?x8xbf16>) outs(%15 : tensor<?x?x8xf32>) {
  ^bb0(%in: bf16, %in_2: bf16, %out: f32):
    %19 = arith.extf %in : bf16 to f32
    %20 = arith.extf %in_2 : bf16 to f32
    %21 = arith.mulf %19, %20 : f32
    %22 = arith.addf %out, %21 : f32
    linalg.yield %22 : f32
  } -> tensor<?x?x8xf32>
  %17 = tensor.empty(%arg3, %arg4) : tensor<?x?x8xbf16>
  %18 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel"]} ins(%16 : tensor<?x?x8xf32>) outs(%17 : tensor<?x?x8xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %19 = arith.truncf %in : f32 to bf16
    linalg.yield %19 : bf16
  } -> tensor<?x?x8xbf16>
  return %18 : tensor<?x?x8xbf16>
}
