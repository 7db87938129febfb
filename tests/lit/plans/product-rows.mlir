// On a GPU a product of narrow rows stays apart from what is done to its rows, by the prediction of both ways, and of f32 since
// tensor cores do not multiply it as it is; so it is said.

// RUN: tilewright explain %s --function halves --target cuda:sm_90a --dim T@arg0.0=1:512 --partition --json | filecheck %s --check-prefix=HALVES
// RUN: tilewright explain %s --function singles --target cuda:sm_90a --dim T@arg0.0=1:512 --partition --json | filecheck %s --check-prefix=SINGLES

#full = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>

// HALVES: "event": "area", "number": 0, "name": "matmul{{.*}}"operations": [{{[0-9]+}}]
// HALVES: "event": "area", "number": 1, "name": "row_add{{.*}}"operations": [{{[0-9]+}}]
// HALVES: "event": "kept_apart", "rule": "product-rows", "reason": "one launch is predicted to take {{[0-9.]+}} of the time of two"
func.func @halves(%x: tensor<?x64xf16>, %w: tensor<64x32xf16>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %T = tensor.dim %x, %c0 : tensor<?x64xf16>
  %to = tensor.empty(%T) : tensor<?x32xf32>
  %start = linalg.fill ins(%zero : f32) outs(%to : tensor<?x32xf32>) -> tensor<?x32xf32>
  %y = linalg.matmul ins(%x, %w : tensor<?x64xf16>, tensor<64x32xf16>) outs(%start : tensor<?x32xf32>) -> tensor<?x32xf32>
  %rows = tensor.empty(%T) : tensor<?xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%rows : tensor<?xf32>) -> tensor<?xf32>
  %sum = linalg.generic {indexing_maps = [#full, #row], iterator_types = ["parallel", "reduction"]}
      ins(%y : tensor<?x32xf32>) outs(%zeros : tensor<?xf32>) { ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %o : f32
    linalg.yield %r : f32 } -> tensor<?xf32>
  return %sum : tensor<?xf32>
}

// SINGLES: "event": "kept_apart", "rule": "product-rows", "reason": "tensor cores do not multiply f32 here; wanted f16 or bf16"
// SINGLES-NOT: "stitched"
func.func @singles(%x: tensor<?x64xf32>, %w: tensor<64x32xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %T = tensor.dim %x, %c0 : tensor<?x64xf32>
  %to = tensor.empty(%T) : tensor<?x32xf32>
  %start = linalg.fill ins(%zero : f32) outs(%to : tensor<?x32xf32>) -> tensor<?x32xf32>
  %y = linalg.matmul ins(%x, %w : tensor<?x64xf32>, tensor<64x32xf32>) outs(%start : tensor<?x32xf32>) -> tensor<?x32xf32>
  %rows = tensor.empty(%T) : tensor<?xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%rows : tensor<?xf32>) -> tensor<?xf32>
  %sum = linalg.generic {indexing_maps = [#full, #row], iterator_types = ["parallel", "reduction"]}
      ins(%y : tensor<?x32xf32>) outs(%zeros : tensor<?xf32>) { ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %o : f32
    linalg.yield %r : f32 } -> tensor<?xf32>
  return %sum : tensor<?xf32>
}
