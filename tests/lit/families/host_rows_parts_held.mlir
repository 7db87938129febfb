// RUN: not tilewright opt %s --pass 'tile{config="host_rows{axis=lane held=true block=32}"},emit-micro-kernel' 2>&1 | filecheck %s

// What is made of each element is stored by units of columns; rows read from end to end give sums alone.
// CHECK: held: wanted sums down the rows alone, without what is made of each element
func.func @workload(%x: tensor<?x768xf32> {tw.dims = ["d0", "768"], tw.unit = 1}, %d0: index {tw.dims = ["d0"]},
                    %d1: index {tw.dims = ["d1"]})
    -> (tensor<?x768xf32> {tw.dims = ["d1", "768"], tw.unit = 1}, tensor<?x768xf32> {tw.dims = ["d0", "768"], tw.unit = 1}) {
  %none = arith.constant -0.0 : f32
  %to = tensor.empty(%d1) : tensor<?x768xf32>
  %start = linalg.fill ins(%none : f32) outs(%to : tensor<?x768xf32>) -> tensor<?x768xf32>
  %empty = tensor.empty(%d0) : tensor<?x768xf32>
  %twice = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
                           iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<?x768xf32>) outs(%empty : tensor<?x768xf32>) { ^bb0(%a: f32, %o: f32):
    %y = arith.addf %a, %a : f32
    linalg.yield %y : f32 } -> tensor<?x768xf32>
  %parts = linalg.generic {indexing_maps = [affine_map<(i, j) -> (j, i)>, affine_map<(i, j) -> (j floordiv 32, i)>],
                           iterator_types = ["parallel", "reduction"]}
      ins(%twice : tensor<?x768xf32>) outs(%start : tensor<?x768xf32>) { ^bb0(%a: f32, %o: f32):
    %y = arith.addf %a, %o : f32
    linalg.yield %y : f32 } -> tensor<?x768xf32>
  return %parts, %twice : tensor<?x768xf32>, tensor<?x768xf32>
}
