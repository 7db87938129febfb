// RUN: tilewright opt %s --pass 'tile{config="host_pools{groups=2 columns=64 mc=1 permute=true}"},emit-micro-kernel{symbol=mm}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_pools{rows=8 groups=2 columns=64 mc=8}"},emit-micro-kernel{symbol=mm}' | filecheck %s --check-prefix=ROWS

// One row: 64 columns take a byte of each of four planes, of 256 entries in four registers, of which three are permuted under
// masks. What puts the bytes of a group together, by shifts through two registers and choices of bits, stands among the permutations of the next.
// CHECK-LABEL: llvm.func internal @mm_body
// CHECK: :4 = scf.for {{.*}} iter_args({{.*}} -> (vector<16xf32>, vector<16xf32>, vector<16xf32>, vector<16xf32>)
// CHECK: arith.cmpi slt, {{.*}} : vector<64xi8>
// CHECK-COUNT-16: permvar.qi.512
// CHECK-NOT: llvm.fshl
// CHECK: arith.cmpi slt, {{.*}} : vector<64xi8>
// CHECK: permvar.qi.512
// CHECK: llvm.fshl{{.*}} vector<32xi16>
// CHECK: pternlog.d.512
// CHECK: permvar.qi.512
// CHECK: pternlog.d.512
// CHECK: permvar.qi.512
// CHECK: llvm.fshl{{.*}} vector<32xi16>
// CHECK: permvar.qi.512
// CHECK: arith.addf {{.*}} : vector<16xf32>
// CHECK: permvar.qi.512
// CHECK: scf.yield
// CHECK-LABEL: llvm.func @mm(

// Eight rows lie side by side: what an index names is a load and an addition.
// ROWS-LABEL: llvm.func internal @mm_body
// ROWS-NOT: permvar
// ROWS: arith.extui {{.*}} : i8 to i64
// ROWS: llvm.load {{.*}} -> vector<8xf32>
// ROWS: arith.addf {{.*}} : vector<8xf32>
// ROWS-LABEL: llvm.func @mm(

#map = affine_map<(d0, d1) -> (d0 floordiv 32, d1 floordiv 8, d0 mod 32)>
#map1 = affine_map<(d0, d1) -> (d0, d1)>
#map2 = affine_map<(d0, d1, d2) -> (d0, d2)>
#map3 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map4 = affine_map<(d0, d1, d2) -> (d0, d1)>
module {
  func.func @workload(%arg0: tensor<2x2x32xi8> {tw.constant, tw.dims = [2, 2, 32], tw.panel = 32 : i64, tw.unit = 2 : i64}, %arg1: tensor<256x8xi8> {tw.constant, tw.dims = [256, 8], tw.unit = 1 : i64}, %arg2: tensor<?x16xf32> {tw.dims = ["d0", 16], tw.unit = 1 : i64}, %arg3: index {tw.dims = ["d0"]}) -> (tensor<?x64xf32> {tw.dims = ["d0", 64], tw.unit = 1 : i64}) attributes {tw.kind = "contraction"} {
    %0 = tensor.empty() : tensor<64x16xf32>
    %c8 = arith.constant 8 : index
    %c255 = arith.constant 255 : index
    %cst = arith.constant 0.00999999977 : f32
    %1 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel"]} ins(%arg0 : tensor<2x2x32xi8>) outs(%0 : tensor<64x16xf32>) {
    ^bb0(%in: i8, %out: f32):
      %5 = linalg.index 1 : index
      %6 = arith.remsi %5, %c8 : index
      %7 = arith.index_castui %in : i8 to index
      %8 = arith.minui %7, %c255 : index
      %extracted = tensor.extract %arg1[%8, %6] : tensor<256x8xi8>
      %9 = arith.sitofp %extracted : i8 to f32
      %10 = arith.mulf %9, %cst : f32
      linalg.yield %10 : f32
    } -> tensor<64x16xf32>
    %2 = tensor.empty(%arg3) : tensor<?x64xf32>
    %cst_0 = arith.constant 0.000000e+00 : f32
    %3 = linalg.fill ins(%cst_0 : f32) outs(%2 : tensor<?x64xf32>) -> tensor<?x64xf32>
    %4 = linalg.matmul indexing_maps = [#map2, #map3, #map4] ins(%arg2, %1 : tensor<?x16xf32>, tensor<64x16xf32>) outs(%3 : tensor<?x64xf32>) -> tensor<?x64xf32>
    return %4 : tensor<?x64xf32>
  }
}
