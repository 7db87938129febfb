// RUN: tilewright opt %s --pass "expand-layouts" | filecheck %s

// A pack pads to whole tiles, splits the tiled axes and moves the tiles to the end.
// CHECK-LABEL: func.func @pack
// CHECK: arith.ceildivsi
// CHECK: tensor.pad
// CHECK: tensor.expand_shape %{{.+}} {{\[\[}}0, 1], [2, 3]]
// CHECK: linalg.transpose {{.*}} permutation = [0, 2, 1, 3]
// CHECK-NOT: linalg.pack
func.func @pack(%x: tensor<?x8xf32> {tw.dims = ["T", 8]}, %e: tensor<?x2x4x4xf32>, %z: f32) -> tensor<?x2x4x4xf32> {
  %p = linalg.pack %x padding_value(%z : f32) inner_dims_pos = [0, 1] inner_tiles = [4, 4]
    into %e : tensor<?x8xf32> -> tensor<?x2x4x4xf32>
  return %p : tensor<?x2x4x4xf32>
}

// Without a padding value the tiles are whole.
// CHECK-LABEL: func.func @whole
// CHECK-NOT: tensor.pad
// CHECK: tensor.expand_shape
func.func @whole(%x: tensor<12x8xf32>) -> tensor<3x8x4xf32> {
  %e = tensor.empty() : tensor<3x8x4xf32>
  %p = linalg.pack %x inner_dims_pos = [0] inner_tiles = [4] into %e : tensor<12x8xf32> -> tensor<3x8x4xf32>
  return %p : tensor<3x8x4xf32>
}

// The way back ends in a slice.
// CHECK-LABEL: func.func @unpack
// CHECK: linalg.transpose {{.*}} permutation = [0, 2, 1]
// CHECK: tensor.collapse_shape
// CHECK: tensor.extract_slice
func.func @unpack(%x: tensor<3x8x4xf32>) -> tensor<10x8xf32> {
  %e = tensor.empty() : tensor<10x8xf32>
  %p = linalg.unpack %x inner_dims_pos = [0] inner_tiles = [4] into %e : tensor<3x8x4xf32> -> tensor<10x8xf32>
  return %p : tensor<10x8xf32>
}
