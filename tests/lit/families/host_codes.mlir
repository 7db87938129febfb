// RUN: tilewright opt %s --pass 'tile{config="host_codes{mr=2 nv=4 lanes=16}"},emit-micro-kernel{symbol=mm}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_codes{mr=6 nv=4 lanes=16 decode=true mc=12}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=PANEL

// Two rows by 64 columns: words of eight codes become floats in registers, and what is summed over a group is multiplied by its
// scale, in the loop over groups around that over words.
// CHECK-LABEL: llvm.func internal @mm_body
// CHECK: :8 = scf.for {{.*}} iter_args({{.*}} -> (vector<16xf32>, {{.*}})
// CHECK: :8 = scf.for {{.*}} iter_args({{.*}} -> (vector<16xf32>, {{.*}})
// CHECK-COUNT-4: llvm.load {{.*}} -> vector<16xi32>
// CHECK: %[[CODE:.*]] = arith.shrsi {{.*}} : vector<16xi32>
// CHECK-NEXT: %[[VALUE:.*]] = arith.sitofp %[[CODE]] : vector<16xi32> to vector<16xf32>
// CHECK-NEXT: llvm.intr.fmuladd(%{{.*}}, %[[VALUE]], %{{.*}})
// CHECK-NEXT: llvm.intr.fmuladd(%{{.*}}, %[[VALUE]], %{{.*}})
// CHECK-NOT: arith.mulf
// CHECK: scf.yield
// CHECK-COUNT-8: llvm.intr.fmuladd
// CHECK-NEXT: scf.yield
// CHECK-LABEL: llvm.func @mm(

// A panel is decoded to the workspace, scaled; blocks of six rows read it from there and no codes.
// PANEL-LABEL: llvm.func internal @mm_body
// PANEL: arith.sitofp {{.*}} : vector<16xi32> to vector<16xf32>
// PANEL-NEXT: %[[SCALED:.*]] = arith.mulf
// PANEL: llvm.store %[[SCALED]], {{.*}} : vector<16xf32>, !llvm.ptr
// PANEL: :24 = scf.for
// PANEL-NOT: arith.sitofp
// PANEL: scf.yield
// PANEL-LABEL: llvm.func @mm(

#map = affine_map<(d0, d1) -> (d0 floordiv 64, (d1 floordiv 2) floordiv 4, d0 mod 64, (d1 floordiv 2) mod 4)>
#map1 = affine_map<(d0, d1) -> (d0 floordiv 64, d1 floordiv 32, d0 mod 64)>
#map2 = affine_map<(d0, d1) -> (d0, d1)>
#map3 = affine_map<(d0, d1, d2) -> (d0, d2)>
#map4 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map5 = affine_map<(d0, d1, d2) -> (d0, d1)>
module {
  func.func @workload(%arg0: tensor<1x8x64x4xi8> {tw.constant, tw.dims = [1, 8, 64, 4], tw.panel = 64 : i64, tw.unit = 3 : i64}, %arg1: tensor<1x2x64xf32> {tw.constant, tw.dims = [1, 2, 64], tw.panel = 64 : i64, tw.unit = 2 : i64}, %arg2: tensor<?x64xf32> {tw.dims = ["d0", 64], tw.unit = 1 : i64}, %arg3: index {tw.dims = ["d0"]}) -> (tensor<?x64xf32> {tw.dims = ["d0", 64], tw.unit = 1 : i64}) attributes {tw.kind = "contraction"} {
    %0 = tensor.empty() : tensor<64x64xf32>
    %c2 = arith.constant 2 : index
    %c4 = arith.constant 4 : index
    %c8_i8 = arith.constant 8 : i8
    %c0_i8 = arith.constant 0 : i8
    %c15_i8 = arith.constant 15 : i8
    %cst = arith.constant 8.000000e+00 : f32
    %1 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel"]} ins(%arg0, %arg1 : tensor<1x8x64x4xi8>, tensor<1x2x64xf32>) outs(%0 : tensor<64x64xf32>) {
    ^bb0(%in: i8, %in_1: f32, %out: f32):
      %5 = linalg.index 1 : index
      %6 = arith.remsi %5, %c2 : index
      %7 = arith.muli %6, %c4 : index
      %8 = arith.index_cast %7 : index to i64
      %9 = arith.trunci %8 : i64 to i8
      %10 = arith.cmpi ult, %9, %c8_i8 : i8
      %11 = arith.shrui %in, %9 : i8
      %12 = arith.select %10, %11, %c0_i8 : i8
      %13 = arith.andi %12, %c15_i8 : i8
      %14 = arith.uitofp %13 : i8 to f32
      %15 = arith.subf %14, %cst : f32
      %16 = arith.mulf %15, %in_1 : f32
      linalg.yield %16 : f32
    } -> tensor<64x64xf32>
    %2 = tensor.empty(%arg3) : tensor<?x64xf32>
    %cst_0 = arith.constant 0.000000e+00 : f32
    %3 = linalg.fill ins(%cst_0 : f32) outs(%2 : tensor<?x64xf32>) -> tensor<?x64xf32>
    %4 = linalg.matmul indexing_maps = [#map3, #map4, #map5] ins(%arg2, %1 : tensor<?x64xf32>, tensor<64x64xf32>) outs(%3 : tensor<?x64xf32>) -> tensor<?x64xf32>
    return %4 : tensor<?x64xf32>
  }
}
