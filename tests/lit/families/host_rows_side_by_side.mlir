// RUN: tilewright opt %s --pass 'tile{config="host_rows{lanes=8 rows=4}"},emit-micro-kernel' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_rows{lanes=8}"},emit-micro-kernel' | filecheck %s --check-prefix=ALONE

#full = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>
#each = affine_map<(i) -> (i)>
func.func @workload(%x: tensor<?x?xf32> {tw.dims = ["d0", "d1"], tw.unit = 1}, %d0: index {tw.dims = ["d0"]},
                    %d1: index {tw.dims = ["d1"]}) -> (tensor<?x?xf32> {tw.dims = ["d0", "d1"], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %to = tensor.empty(%d0, %d1) : tensor<?x?xf32>
  %rows = tensor.empty(%d0) : tensor<?xf32>
  %start = linalg.fill ins(%zero : f32) outs(%rows : tensor<?xf32>) -> tensor<?xf32>
  %sum = linalg.generic {indexing_maps = [#full, #row], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<?x?xf32>) outs(%start : tensor<?xf32>) { ^bb0(%a: f32, %o: f32):
    %y = arith.addf %a, %o : f32
    linalg.yield %y : f32 } -> tensor<?xf32>
  %log = linalg.generic {indexing_maps = [#each, #each], iterator_types = ["parallel"]}
      ins(%sum : tensor<?xf32>) outs(%rows : tensor<?xf32>) { ^bb0(%a: f32, %o: f32):
    %y = math.log %a : f32
    linalg.yield %y : f32 } -> tensor<?xf32>
  %out = linalg.generic {indexing_maps = [#full, #row, #full], iterator_types = ["parallel", "parallel"]}
      ins(%x, %log : tensor<?x?xf32>, tensor<?xf32>) outs(%to : tensor<?x?xf32>) { ^bb0(%a: f32, %s: f32, %o: f32):
    %y = arith.subf %a, %s : f32
    linalg.yield %y : f32 } -> tensor<?x?xf32>
  return %out : tensor<?x?xf32>
}

// The sums of four rows are stored one by one and read side by side; the next sweep reads a logarithm a row.
// CHECK: llvm.alloca
// CHECK: vector.shuffle
// CHECK: vector.extract
// CHECK: llvm.store %{{.+}} : f32, !llvm.ptr
// CHECK: llvm.load %{{.+}} : !llvm.ptr -> vector<4xf32>
// CHECK: math.log %{{.+}} : vector<4xf32>
// CHECK-NOT: math.log
// CHECK: arith.subf %{{.+}} : vector<8xf32>

// ALONE: math.log %{{.+}} : f32
// ALONE-NOT: math.log
