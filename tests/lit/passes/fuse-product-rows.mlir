// A product and the sums of its rows are one region where kernels of a GPU hold both and all that have room are asked for, but of
// no f32, whose products are no tensor core's. As predicted they are apart: measured, one launch takes longer than two.

// RUN: tilewright opt %s --pass 'fuse{products=f16,bf16 arch=sm_90a}' | filecheck %s --check-prefix=NONE
// RUN: tilewright opt %s --pass 'fuse{products=f16 arch=sm_90a strips=widely}' | filecheck %s --check-prefix=WIDE
// RUN: tilewright opt %s --pass 'fuse{products=f16 arch=sm_90a strips=never}' | filecheck %s --check-prefix=NONE
// RUN: tilewright opt %s --pass fuse | filecheck %s --check-prefix=NONE

#full = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>
#left = affine_map<(i, j, k) -> (i, k)>
#right = affine_map<(i, j, k) -> (k, j)>
#out = affine_map<(i, j, k) -> (i, j)>

// WIDE: func.func @main
// WIDE: linalg.generic {{.*}}tw.region = 0
// WIDE: linalg.generic {{.*}}tw.region = 0
// WIDE: linalg.generic {{.*}}tw.region = 1
// WIDE: linalg.generic {{.*}}tw.region = 1
// WIDE: linalg.generic {{.*}}tw.region = [[P:[0-9]+]]
// WIDE-NOT: linalg.generic {{.*}}tw.region = [[P]] :
// NONE: linalg.generic {{.*}}tw.region = 0
// NONE: linalg.generic {{.*}}tw.region = 1
// NONE: linalg.generic {{.*}}tw.region = 2
// NONE: linalg.generic {{.*}}tw.region = 3
// NONE: linalg.generic {{.*}}tw.region = 4
// NONE: linalg.generic {{.*}}tw.region = 5
func.func @main(%x: tensor<?x128xf16> {tw.dims = ["T", 128]}, %w: tensor<128x64xf16> {tw.dims = [128, 64]},
                %v: tensor<128x1024xf16> {tw.dims = [128, 1024]}, %y: tensor<?x64xf32> {tw.dims = ["T", 64]},
                %u: tensor<64x64xf32> {tw.dims = [64, 64]}) -> (tensor<?xf32>, tensor<?xf32>, tensor<?xf32>)
    attributes {tw.ranges = {T = [4096, 4096, 1]}} {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %T = tensor.dim %x, %c0 : tensor<?x128xf16>
  %e = tensor.empty(%T) : tensor<?x64xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x64xf32>) -> tensor<?x64xf32>
  %we = tensor.empty(%T) : tensor<?x1024xf32>
  %wf = linalg.fill ins(%zero : f32) outs(%we : tensor<?x1024xf32>) -> tensor<?x1024xf32>
  %re = tensor.empty(%T) : tensor<?xf32>
  %rf = linalg.fill ins(%zero : f32) outs(%re : tensor<?xf32>) -> tensor<?xf32>
  %narrow = linalg.generic {indexing_maps = [#left, #right, #out], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<?x128xf16>, tensor<128x64xf16>) outs(%f : tensor<?x64xf32>) { ^bb0(%a: f16, %b: f16, %o: f32):
    %c = arith.extf %a : f16 to f32
    %d = arith.extf %b : f16 to f32
    %p = arith.mulf %c, %d : f32
    %s = arith.addf %o, %p : f32
    linalg.yield %s : f32 } -> tensor<?x64xf32>
  %sums = linalg.generic {indexing_maps = [#full, #row], iterator_types = ["parallel", "reduction"]}
      ins(%narrow : tensor<?x64xf32>) outs(%rf : tensor<?xf32>) { ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %o : f32
    linalg.yield %r : f32 } -> tensor<?xf32>
  %wide = linalg.generic {indexing_maps = [#left, #right, #out], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %v : tensor<?x128xf16>, tensor<128x1024xf16>) outs(%wf : tensor<?x1024xf32>) { ^bb0(%a: f16, %b: f16, %o: f32):
    %c = arith.extf %a : f16 to f32
    %d = arith.extf %b : f16 to f32
    %p = arith.mulf %c, %d : f32
    %s = arith.addf %o, %p : f32
    linalg.yield %s : f32 } -> tensor<?x1024xf32>
  %wide_sums = linalg.generic {indexing_maps = [#full, #row], iterator_types = ["parallel", "reduction"]}
      ins(%wide : tensor<?x1024xf32>) outs(%rf : tensor<?xf32>) { ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %o : f32
    linalg.yield %r : f32 } -> tensor<?xf32>
  %single = linalg.generic {indexing_maps = [#left, #right, #out], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%y, %u : tensor<?x64xf32>, tensor<64x64xf32>) outs(%f : tensor<?x64xf32>) { ^bb0(%a: f32, %b: f32, %o: f32):
    %p = arith.mulf %a, %b : f32
    %s = arith.addf %o, %p : f32
    linalg.yield %s : f32 } -> tensor<?x64xf32>
  %single_sums = linalg.generic {indexing_maps = [#full, #row], iterator_types = ["parallel", "reduction"]}
      ins(%single : tensor<?x64xf32>) outs(%rf : tensor<?xf32>) { ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %o : f32
    linalg.yield %r : f32 } -> tensor<?xf32>
  return %sums, %wide_sums, %single_sums : tensor<?xf32>, tensor<?xf32>, tensor<?xf32>
}
