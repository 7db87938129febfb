// RUN: tilewright opt %s --pass 'tile{config="host_matmul{mr=4 nv=2 lanes=8 mc=48}"}' | filecheck %s
// RUN: tilewright opt %s --pass 'tile{config="host_winograd{lanes=8}"}' | filecheck %s --check-prefix=WINOGRAD
// RUN: tilewright opt %s --pass 'tile{config="simt{bm=64 bn=32 bk=8}"}' | filecheck %s --check-prefix=GPU

// Images and pixels are the rows, one space of B * 49 of them: a chunk goes across the ends of lines and images.
// CHECK: %[[LAYER:.+]] = linalg.conv_2d_nchw_fchw
// CHECK: %[[TILES:.+]] = scf.forall (%{{.+}}, %{{.+}}) in (%{{.+}}, 2) shared_outs(%{{.+}} = %{{.+}}) -> (tensor<?x32xf32>)
// CHECK: %[[MOVED:.+]] = linalg.transpose ins(%[[LAYER]] : tensor<?x32x7x7xf32>) {{.*}} permutation = [0, 2, 3, 1]
// CHECK: %[[ROWS:.+]] = tensor.collapse_shape %[[MOVED]] {{\[}}[0, 1, 2], [3]] : tensor<?x7x7x32xf32> into tensor<?x32xf32>
// CHECK: tensor.extract_slice %[[ROWS]][%{{.+}}, %{{.+}}] [%{{.+}}, 16] [1, 1]
// CHECK: tw.axes = ["rows", "columns"]
// CHECK: %[[BACK:.+]] = tensor.expand_shape %[[TILES]] {{\[}}[0, 1, 2], [3]] output_shape [%{{.+}}, 7, 7, 32]
// CHECK: %[[RESULT:.+]] = linalg.transpose ins(%[[BACK]] : tensor<?x7x7x32xf32>) {{.*}} permutation = [0, 3, 1, 2]
// CHECK: return %[[RESULT]]

// Only the filters are cut: consecutive tiles of pixels are no slice of the result.
// WINOGRAD: scf.forall (%{{.+}}, %[[J:.+]]) in (%{{.+}}, {{[0-9]+}})
// WINOGRAD: %[[FIRST:.+]] = arith.muli %[[J]], %
// WINOGRAD: tensor.extract_slice %{{.+}}[0, %[[FIRST]], 0, 0] [%{{.+}}, 32, 7, 7] [1, 1, 1, 1]
// WINOGRAD: tw.axes = ["", "columns", "", ""]

// GPU: scf.forall (%[[I:.+]], %[[J:.+]]) in (
// GPU: tensor.collapse_shape
// GPU: tensor.extract_slice
// GPU: tw.axes = ["rows", "columns"]
func.func @workload(%x: tensor<?x16x9x9xf32> {tw.dims = ["B", 16, 9, 9], tw.unit = 3},
                    %w: tensor<32x16x3x3xf32> {tw.dims = [32, 16, 3, 3], tw.unit = 3}, %B: index {tw.dims = ["B"]})
    -> (tensor<?x32x7x7xf32> {tw.dims = ["B", 32, 7, 7], tw.unit = 1}) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty(%B) : tensor<?x32x7x7xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x32x7x7xf32>) -> tensor<?x32x7x7xf32>
  %y = linalg.conv_2d_nchw_fchw {strides = dense<1> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
      ins(%x, %w : tensor<?x16x9x9xf32>, tensor<32x16x3x3xf32>) outs(%start : tensor<?x32x7x7xf32>) -> tensor<?x32x7x7xf32>
  return %y : tensor<?x32x7x7xf32>
}
