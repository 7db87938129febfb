// A softmax behind a product is done by strips of rows from where that is predicted to pay, and alone where there are never so many
// rows, or where other rows are asked for.

// RUN: tilewright explain %s --function behind --dim T@arg0.0=1:8192 --partition --json | filecheck %s --check-prefix=BEHIND
// RUN: tilewright explain %s --function behind --dim T@arg0.0=1:1000 --partition --json | filecheck %s --check-prefix=FEW
// RUN: tilewright explain %s --function down --dim T@arg0.0=1:8192 --partition --json | filecheck %s --check-prefix=DOWN

#full = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>
#column = affine_map<(i, j) -> (j)>

// BEHIND: "event": "area"{{.*}}"name": "matmul
// BEHIND: "event": "area"{{.*}}"kind": "reduction"
// BEHIND: "event": "strips", "calls": [0, 1], "rows": "T", "size": {{[0-9]+}}, "least": {{[0-9]+}}, "each": 8, "gain": 0.0{{[0-9]+}}
// FEW-NOT: "strips"
func.func @behind(%x: tensor<?x256xf32>, %w: tensor<256x3072xf32>) -> tensor<?x3072xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %T = tensor.dim %x, %c0 : tensor<?x256xf32>
  %to = tensor.empty(%T) : tensor<?x3072xf32>
  %start = linalg.fill ins(%zero : f32) outs(%to : tensor<?x3072xf32>) -> tensor<?x3072xf32>
  %y = linalg.matmul ins(%x, %w : tensor<?x256xf32>, tensor<256x3072xf32>) outs(%start : tensor<?x3072xf32>) -> tensor<?x3072xf32>
  %rows = tensor.empty(%T) : tensor<?xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%rows : tensor<?xf32>) -> tensor<?xf32>
  %e = linalg.generic {indexing_maps = [#full, #full], iterator_types = ["parallel", "parallel"]}
      ins(%y : tensor<?x3072xf32>) outs(%to : tensor<?x3072xf32>) { ^bb0(%a: f32, %o: f32):
    %r = math.exp %a : f32
    linalg.yield %r : f32 } -> tensor<?x3072xf32>
  %sum = linalg.generic {indexing_maps = [#full, #row], iterator_types = ["parallel", "reduction"]}
      ins(%e : tensor<?x3072xf32>) outs(%zeros : tensor<?xf32>) { ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %o : f32
    linalg.yield %r : f32 } -> tensor<?xf32>
  %out = linalg.generic {indexing_maps = [#full, #row, #full], iterator_types = ["parallel", "parallel"]}
      ins(%e, %sum : tensor<?x3072xf32>, tensor<?xf32>) outs(%to : tensor<?x3072xf32>) { ^bb0(%a: f32, %s: f32, %o: f32):
    %r = arith.divf %a, %s : f32
    linalg.yield %r : f32 } -> tensor<?x3072xf32>
  return %out : tensor<?x3072xf32>
}

// DOWN: "event": "area"{{.*}}"name": "matmul
// DOWN-NOT: "strips"
func.func @down(%x: tensor<?x256xf32>, %w: tensor<256x3072xf32>) -> tensor<3072xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %T = tensor.dim %x, %c0 : tensor<?x256xf32>
  %to = tensor.empty(%T) : tensor<?x3072xf32>
  %start = linalg.fill ins(%zero : f32) outs(%to : tensor<?x3072xf32>) -> tensor<?x3072xf32>
  %y = linalg.matmul ins(%x, %w : tensor<?x256xf32>, tensor<256x3072xf32>) outs(%start : tensor<?x3072xf32>) -> tensor<?x3072xf32>
  %columns = tensor.empty() : tensor<3072xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%columns : tensor<3072xf32>) -> tensor<3072xf32>
  %sum = linalg.generic {indexing_maps = [#full, #column], iterator_types = ["reduction", "parallel"]}
      ins(%y : tensor<?x3072xf32>) outs(%zeros : tensor<3072xf32>) { ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %o : f32
    linalg.yield %r : f32 } -> tensor<3072xf32>
  return %sum : tensor<3072xf32>
}
