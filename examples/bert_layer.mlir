// A BERT encoder layer for inference: hidden size 768, 12 heads, feed-forward size 3072, sequence length T. Exported from PyTorch.
#map = affine_map<(d0, d1, d2) -> (d1, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map2 = affine_map<(d0, d1, d2) -> (d2)>
#map3 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map4 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#map5 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, 0)>
#map6 = affine_map<(d0, d1, d2) -> (d0, d1, 0)>
module {
  func.func @main(%arg0: tensor<1x?x768xf32> {tw.dims = [1, "T", 768]}, %arg1: tensor<768x2304xf32>, %arg2: tensor<2304xf32>, %arg3: tensor<768x768xf32>, %arg4: tensor<768xf32>, %arg5: tensor<768x3072xf32>, %arg6: tensor<3072xf32>, %arg7: tensor<3072x768xf32>, %arg8: tensor<768xf32>, %arg9: tensor<768xf32>, %arg10: tensor<768xf32>, %arg11: tensor<768xf32>, %arg12: tensor<768xf32>) -> tensor<1x?x768xf32> {
    %true = arith.constant true
    %c0_i64 = arith.constant 0 : i64
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %cst = arith.constant 0.000000e+00 : f32
    %cst_0 = arith.constant 0xFF800000 : f32
    %cst_1 = arith.constant 1.000000e+00 : f32
    %cst_2 = arith.constant 5.000000e-01 : f32
    %cst_3 = arith.constant 1.000000e-05 : f64
    %cst_4 = arith.constant 1.250000e-01 : f32
    %cst_5 = arith.constant 7.680000e+02 : f32
    %cst_6 = arith.constant 1.41421354 : f32
    %dim = tensor.dim %arg0, %c1 : tensor<1x?x768xf32>
    %0 = tensor.empty() : tensor<1x768x2304xf32>
    %1 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg1 : tensor<768x2304xf32>) outs(%0 : tensor<1x768x2304xf32>) {
    ^bb0(%in: f32, %out: f32):
      linalg.yield %in : f32
    } -> tensor<1x768x2304xf32>
    %2 = tensor.empty(%dim) : tensor<1x?x2304xf32>
    %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<1x?x2304xf32>) -> tensor<1x?x2304xf32>
    %4 = linalg.batch_matmul ins(%arg0, %1 : tensor<1x?x768xf32>, tensor<1x768x2304xf32>) outs(%3 : tensor<1x?x2304xf32>) -> tensor<1x?x2304xf32>
    %5 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%4, %arg2 : tensor<1x?x2304xf32>, tensor<2304xf32>) outs(%2 : tensor<1x?x2304xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.addf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x2304xf32>
    %extracted_slice = tensor.extract_slice %5[0, 0, 0] [1, %dim, 768] [1, 1, 1] : tensor<1x?x2304xf32> to tensor<1x?x768xf32>
    %extracted_slice_7 = tensor.extract_slice %5[0, 0, 768] [1, %dim, 768] [1, 1, 1] : tensor<1x?x2304xf32> to tensor<1x?x768xf32>
    %extracted_slice_8 = tensor.extract_slice %5[0, 0, 1536] [1, %dim, 768] [1, 1, 1] : tensor<1x?x2304xf32> to tensor<1x?x768xf32>
    %expanded = tensor.expand_shape %extracted_slice [[0], [1], [2, 3]] output_shape [1, %dim, 12, 64] : tensor<1x?x768xf32> into tensor<1x?x12x64xf32>
    %6 = tensor.empty(%dim) : tensor<1x12x?x64xf32>
    %transposed = linalg.transpose ins(%expanded : tensor<1x?x12x64xf32>) outs(%6 : tensor<1x12x?x64xf32>) permutation = [0, 2, 1, 3] 
    %expanded_9 = tensor.expand_shape %extracted_slice_7 [[0], [1], [2, 3]] output_shape [1, %dim, 12, 64] : tensor<1x?x768xf32> into tensor<1x?x12x64xf32>
    %expanded_10 = tensor.expand_shape %extracted_slice_8 [[0], [1], [2, 3]] output_shape [1, %dim, 12, 64] : tensor<1x?x768xf32> into tensor<1x?x12x64xf32>
    %transposed_11 = linalg.transpose ins(%expanded_10 : tensor<1x?x12x64xf32>) outs(%6 : tensor<1x12x?x64xf32>) permutation = [0, 2, 1, 3] 
    %7 = tensor.empty(%dim) : tensor<1x12x64x?xf32>
    %transposed_12 = linalg.transpose ins(%expanded_9 : tensor<1x?x12x64xf32>) outs(%7 : tensor<1x12x64x?xf32>) permutation = [0, 2, 3, 1] 
    %collapsed = tensor.collapse_shape %transposed [[0, 1], [2], [3]] : tensor<1x12x?x64xf32> into tensor<12x?x64xf32>
    %collapsed_13 = tensor.collapse_shape %transposed_12 [[0, 1], [2], [3]] : tensor<1x12x64x?xf32> into tensor<12x64x?xf32>
    %8 = tensor.empty(%dim, %dim) : tensor<12x?x?xf32>
    %9 = linalg.fill ins(%cst : f32) outs(%8 : tensor<12x?x?xf32>) -> tensor<12x?x?xf32>
    %10 = linalg.batch_matmul ins(%collapsed, %collapsed_13 : tensor<12x?x64xf32>, tensor<12x64x?xf32>) outs(%9 : tensor<12x?x?xf32>) -> tensor<12x?x?xf32>
    %expanded_14 = tensor.expand_shape %10 [[0, 1], [2], [3]] output_shape [1, 12, %dim, %dim] : tensor<12x?x?xf32> into tensor<1x12x?x?xf32>
    %11 = tensor.empty(%dim, %dim) : tensor<1x12x?x?xf32>
    %12 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded_14 : tensor<1x12x?x?xf32>) outs(%11 : tensor<1x12x?x?xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = arith.mulf %in, %cst_4 : f32
      linalg.yield %78 : f32
    } -> tensor<1x12x?x?xf32>
    %13 = tensor.empty(%dim) : tensor<1x12x?xi64>
    %14 = linalg.fill ins(%c0_i64 : i64) outs(%13 : tensor<1x12x?xi64>) -> tensor<1x12x?xi64>
    %15 = tensor.empty(%dim) : tensor<1x12x?xf32>
    %16 = linalg.fill ins(%cst_0 : f32) outs(%15 : tensor<1x12x?xf32>) -> tensor<1x12x?xf32>
    %17:2 = linalg.generic {indexing_maps = [#map3, #map4, #map4], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%12 : tensor<1x12x?x?xf32>) outs(%16, %14 : tensor<1x12x?xf32>, tensor<1x12x?xi64>) {
    ^bb0(%in: f32, %out: f32, %out_21: i64):
      %78 = linalg.index 3 : index
      %79 = arith.index_cast %78 : index to i64
      %80 = arith.maximumf %in, %out : f32
      %81 = arith.cmpf ogt, %in, %out : f32
      %82 = arith.select %81, %79, %out_21 : i64
      linalg.yield %80, %82 : f32, i64
    } -> (tensor<1x12x?xf32>, tensor<1x12x?xi64>)
    %expanded_15 = tensor.expand_shape %17#0 [[0], [1], [2, 3]] output_shape [1, 12, %dim, 1] : tensor<1x12x?xf32> into tensor<1x12x?x1xf32>
    %18 = linalg.generic {indexing_maps = [#map3, #map5, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%12, %expanded_15 : tensor<1x12x?x?xf32>, tensor<1x12x?x1xf32>) outs(%11 : tensor<1x12x?x?xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.subf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x12x?x?xf32>
    %19 = linalg.generic {indexing_maps = [#map3, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%18 : tensor<1x12x?x?xf32>) outs(%11 : tensor<1x12x?x?xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = math.exp %in : f32
      linalg.yield %78 : f32
    } -> tensor<1x12x?x?xf32>
    %20 = tensor.empty(%dim) : tensor<1x12x?x1xf32>
    %21 = linalg.fill ins(%cst : f32) outs(%20 : tensor<1x12x?x1xf32>) -> tensor<1x12x?x1xf32>
    %22 = linalg.generic {indexing_maps = [#map3, #map5], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%19 : tensor<1x12x?x?xf32>) outs(%21 : tensor<1x12x?x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = arith.addf %in, %out : f32
      linalg.yield %78 : f32
    } -> tensor<1x12x?x1xf32>
    %23 = linalg.generic {indexing_maps = [#map3, #map5, #map3], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%19, %22 : tensor<1x12x?x?xf32>, tensor<1x12x?x1xf32>) outs(%11 : tensor<1x12x?x?xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.divf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x12x?x?xf32>
    %24 = arith.index_cast %dim : index to i64
    %collapsed_16 = tensor.collapse_shape %23 [[0, 1], [2], [3]] : tensor<1x12x?x?xf32> into tensor<12x?x?xf32>
    %collapsed_17 = tensor.collapse_shape %transposed_11 [[0, 1], [2], [3]] : tensor<1x12x?x64xf32> into tensor<12x?x64xf32>
    %25 = tensor.empty(%dim) : tensor<12x?x64xf32>
    %26 = linalg.fill ins(%cst : f32) outs(%25 : tensor<12x?x64xf32>) -> tensor<12x?x64xf32>
    %27 = linalg.batch_matmul ins(%collapsed_16, %collapsed_17 : tensor<12x?x?xf32>, tensor<12x?x64xf32>) outs(%26 : tensor<12x?x64xf32>) -> tensor<12x?x64xf32>
    %expanded_18 = tensor.expand_shape %27 [[0, 1], [2], [3]] output_shape [1, 12, %dim, 64] : tensor<12x?x64xf32> into tensor<1x12x?x64xf32>
    %28 = tensor.empty(%dim) : tensor<1x?x12x64xf32>
    %transposed_19 = linalg.transpose ins(%expanded_18 : tensor<1x12x?x64xf32>) outs(%28 : tensor<1x?x12x64xf32>) permutation = [0, 2, 1, 3] 
    %collapsed_20 = tensor.collapse_shape %transposed_19 [[0], [1], [2, 3]] : tensor<1x?x12x64xf32> into tensor<1x?x768xf32>
    %29 = tensor.empty() : tensor<1x768x768xf32>
    %30 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg3 : tensor<768x768xf32>) outs(%29 : tensor<1x768x768xf32>) {
    ^bb0(%in: f32, %out: f32):
      linalg.yield %in : f32
    } -> tensor<1x768x768xf32>
    %31 = tensor.empty(%dim) : tensor<1x?x768xf32>
    %32 = linalg.fill ins(%cst : f32) outs(%31 : tensor<1x?x768xf32>) -> tensor<1x?x768xf32>
    %33 = linalg.batch_matmul ins(%collapsed_20, %30 : tensor<1x?x768xf32>, tensor<1x768x768xf32>) outs(%32 : tensor<1x?x768xf32>) -> tensor<1x?x768xf32>
    %34 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg0, %33 : tensor<1x?x768xf32>, tensor<1x?x768xf32>) outs(%31 : tensor<1x?x768xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.addf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x768xf32>
    %35 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%34, %arg4 : tensor<1x?x768xf32>, tensor<768xf32>) outs(%31 : tensor<1x?x768xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.addf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x768xf32>
    %36 = tensor.empty(%dim) : tensor<1x?x1xf32>
    %37 = linalg.fill ins(%cst : f32) outs(%36 : tensor<1x?x1xf32>) -> tensor<1x?x1xf32>
    %38 = linalg.generic {indexing_maps = [#map1, #map6], iterator_types = ["parallel", "parallel", "reduction"]} ins(%35 : tensor<1x?x768xf32>) outs(%37 : tensor<1x?x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = arith.addf %in, %out : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x1xf32>
    %39 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%38 : tensor<1x?x1xf32>) outs(%36 : tensor<1x?x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = arith.divf %in, %cst_5 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x1xf32>
    %40 = arith.cmpi sge, %24, %c0_i64 : i64
    cf.assert %40, "unimplemented: dynamic negative broadcast sizes"
    %41 = tensor.empty(%dim) : tensor<1x?x768xf32>
    %42 = linalg.generic {indexing_maps = [#map1], iterator_types = ["parallel", "parallel", "parallel"]} outs(%41 : tensor<1x?x768xf32>) {
    ^bb0(%out: f32):
      %78 = linalg.index 1 : index
      %79 = arith.cmpi eq, %dim, %c1 : index
      %80 = arith.select %79, %c0, %78 : index
      %extracted = tensor.extract %39[%c0, %80, %c0] : tensor<1x?x1xf32>
      linalg.yield %extracted : f32
    } -> tensor<1x?x768xf32>
    cf.assert %true, "mismatched size for broadcast"
    %43 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%35, %42 : tensor<1x?x768xf32>, tensor<1x?x768xf32>) outs(%31 : tensor<1x?x768xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.subf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x768xf32>
    %44 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%43, %43 : tensor<1x?x768xf32>, tensor<1x?x768xf32>) outs(%31 : tensor<1x?x768xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.mulf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x768xf32>
    %45 = linalg.generic {indexing_maps = [#map1, #map6], iterator_types = ["parallel", "parallel", "reduction"]} ins(%44 : tensor<1x?x768xf32>) outs(%37 : tensor<1x?x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = arith.addf %in, %out : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x1xf32>
    %46 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%45 : tensor<1x?x1xf32>) outs(%36 : tensor<1x?x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = arith.divf %in, %cst_5 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x1xf32>
    %47 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%46 : tensor<1x?x1xf32>) outs(%36 : tensor<1x?x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = arith.truncf %cst_3 : f64 to f32
      %79 = arith.addf %in, %78 : f32
      linalg.yield %79 : f32
    } -> tensor<1x?x1xf32>
    %48 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%47 : tensor<1x?x1xf32>) outs(%36 : tensor<1x?x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = math.rsqrt %in : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x1xf32>
    cf.assert %40, "unimplemented: dynamic negative broadcast sizes"
    %49 = linalg.generic {indexing_maps = [#map1], iterator_types = ["parallel", "parallel", "parallel"]} outs(%41 : tensor<1x?x768xf32>) {
    ^bb0(%out: f32):
      %78 = linalg.index 1 : index
      %79 = arith.cmpi eq, %dim, %c1 : index
      %80 = arith.select %79, %c0, %78 : index
      %extracted = tensor.extract %48[%c0, %80, %c0] : tensor<1x?x1xf32>
      linalg.yield %extracted : f32
    } -> tensor<1x?x768xf32>
    cf.assert %true, "mismatched size for broadcast"
    %50 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%43, %49 : tensor<1x?x768xf32>, tensor<1x?x768xf32>) outs(%31 : tensor<1x?x768xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.mulf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x768xf32>
    %51 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%50, %arg9 : tensor<1x?x768xf32>, tensor<768xf32>) outs(%31 : tensor<1x?x768xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.mulf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x768xf32>
    %52 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%51, %arg10 : tensor<1x?x768xf32>, tensor<768xf32>) outs(%31 : tensor<1x?x768xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.addf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x768xf32>
    %53 = tensor.empty() : tensor<1x768x3072xf32>
    %54 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg5 : tensor<768x3072xf32>) outs(%53 : tensor<1x768x3072xf32>) {
    ^bb0(%in: f32, %out: f32):
      linalg.yield %in : f32
    } -> tensor<1x768x3072xf32>
    %55 = tensor.empty(%dim) : tensor<1x?x3072xf32>
    %56 = linalg.fill ins(%cst : f32) outs(%55 : tensor<1x?x3072xf32>) -> tensor<1x?x3072xf32>
    %57 = linalg.batch_matmul ins(%52, %54 : tensor<1x?x768xf32>, tensor<1x768x3072xf32>) outs(%56 : tensor<1x?x3072xf32>) -> tensor<1x?x3072xf32>
    %58 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%57, %arg6 : tensor<1x?x3072xf32>, tensor<3072xf32>) outs(%55 : tensor<1x?x3072xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.addf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x3072xf32>
    %59 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%58 : tensor<1x?x3072xf32>) outs(%55 : tensor<1x?x3072xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = arith.divf %in, %cst_6 : f32
      %79 = math.erf %78 : f32
      %80 = arith.addf %79, %cst_1 : f32
      %81 = arith.mulf %80, %cst_2 : f32
      %82 = arith.mulf %in, %81 : f32
      linalg.yield %82 : f32
    } -> tensor<1x?x3072xf32>
    %60 = tensor.empty() : tensor<1x3072x768xf32>
    %61 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg7 : tensor<3072x768xf32>) outs(%60 : tensor<1x3072x768xf32>) {
    ^bb0(%in: f32, %out: f32):
      linalg.yield %in : f32
    } -> tensor<1x3072x768xf32>
    %62 = linalg.batch_matmul ins(%59, %61 : tensor<1x?x3072xf32>, tensor<1x3072x768xf32>) outs(%32 : tensor<1x?x768xf32>) -> tensor<1x?x768xf32>
    %63 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%52, %62 : tensor<1x?x768xf32>, tensor<1x?x768xf32>) outs(%31 : tensor<1x?x768xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.addf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x768xf32>
    %64 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%63, %arg8 : tensor<1x?x768xf32>, tensor<768xf32>) outs(%31 : tensor<1x?x768xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.addf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x768xf32>
    %65 = linalg.generic {indexing_maps = [#map1, #map6], iterator_types = ["parallel", "parallel", "reduction"]} ins(%64 : tensor<1x?x768xf32>) outs(%37 : tensor<1x?x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = arith.addf %in, %out : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x1xf32>
    %66 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%65 : tensor<1x?x1xf32>) outs(%36 : tensor<1x?x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = arith.divf %in, %cst_5 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x1xf32>
    cf.assert %40, "unimplemented: dynamic negative broadcast sizes"
    %67 = linalg.generic {indexing_maps = [#map1], iterator_types = ["parallel", "parallel", "parallel"]} outs(%41 : tensor<1x?x768xf32>) {
    ^bb0(%out: f32):
      %78 = linalg.index 1 : index
      %79 = arith.cmpi eq, %dim, %c1 : index
      %80 = arith.select %79, %c0, %78 : index
      %extracted = tensor.extract %66[%c0, %80, %c0] : tensor<1x?x1xf32>
      linalg.yield %extracted : f32
    } -> tensor<1x?x768xf32>
    cf.assert %true, "mismatched size for broadcast"
    %68 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%64, %67 : tensor<1x?x768xf32>, tensor<1x?x768xf32>) outs(%31 : tensor<1x?x768xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.subf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x768xf32>
    %69 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%68, %68 : tensor<1x?x768xf32>, tensor<1x?x768xf32>) outs(%31 : tensor<1x?x768xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.mulf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x768xf32>
    %70 = linalg.generic {indexing_maps = [#map1, #map6], iterator_types = ["parallel", "parallel", "reduction"]} ins(%69 : tensor<1x?x768xf32>) outs(%37 : tensor<1x?x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = arith.addf %in, %out : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x1xf32>
    %71 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%70 : tensor<1x?x1xf32>) outs(%36 : tensor<1x?x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = arith.divf %in, %cst_5 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x1xf32>
    %72 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%71 : tensor<1x?x1xf32>) outs(%36 : tensor<1x?x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = arith.truncf %cst_3 : f64 to f32
      %79 = arith.addf %in, %78 : f32
      linalg.yield %79 : f32
    } -> tensor<1x?x1xf32>
    %73 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%72 : tensor<1x?x1xf32>) outs(%36 : tensor<1x?x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %78 = math.rsqrt %in : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x1xf32>
    cf.assert %40, "unimplemented: dynamic negative broadcast sizes"
    %74 = linalg.generic {indexing_maps = [#map1], iterator_types = ["parallel", "parallel", "parallel"]} outs(%41 : tensor<1x?x768xf32>) {
    ^bb0(%out: f32):
      %78 = linalg.index 1 : index
      %79 = arith.cmpi eq, %dim, %c1 : index
      %80 = arith.select %79, %c0, %78 : index
      %extracted = tensor.extract %73[%c0, %80, %c0] : tensor<1x?x1xf32>
      linalg.yield %extracted : f32
    } -> tensor<1x?x768xf32>
    cf.assert %true, "mismatched size for broadcast"
    %75 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%68, %74 : tensor<1x?x768xf32>, tensor<1x?x768xf32>) outs(%31 : tensor<1x?x768xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.mulf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x768xf32>
    %76 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%75, %arg11 : tensor<1x?x768xf32>, tensor<768xf32>) outs(%31 : tensor<1x?x768xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.mulf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x768xf32>
    %77 = linalg.generic {indexing_maps = [#map1, #map2, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%76, %arg12 : tensor<1x?x768xf32>, tensor<768xf32>) outs(%31 : tensor<1x?x768xf32>) {
    ^bb0(%in: f32, %in_21: f32, %out: f32):
      %78 = arith.addf %in, %in_21 : f32
      linalg.yield %78 : f32
    } -> tensor<1x?x768xf32>
    return %77 : tensor<1x?x768xf32>
  }
}
