"""Operations that the passes do not read are brought to forms that they do: the results are NumPy's."""

import numpy as np
import pytest

import tilewright as tw

RNG = np.random.default_rng(7)
T = {"T": tw.Dim(1, 64, at=["arg0.0"])}
TWO = {"T": tw.Dim(1, 64, at=["arg0.0", "arg1.0"])}


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def nibbles(*shape: int) -> np.ndarray:
    return RNG.integers(-8, 8, shape).astype(np.int8)


def test_arithmetic_on_tensors():
    fn = tw.compile("""
func.func @main(%a: tensor<?x8xf32>, %b: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %0 = arith.addf %a, %b : tensor<?x8xf32>
  %1 = math.exp %0 : tensor<?x8xf32>
  %2 = arith.cmpf ogt, %1, %a : tensor<?x8xf32>
  %3 = arith.select %2, %a, %b : tensor<?x8xi1>, tensor<?x8xf32>
  return %3 : tensor<?x8xf32>
}""", TWO)
    for t in (1, 5, 64):
        a, b = floats(t, 8), floats(t, 8)
        np.testing.assert_array_equal(fn(a, b), np.where(np.exp(a + b) > a, a, b))


def test_inserts_at_run_time_positions():
    fn = tw.compile("""
func.func @main(%a: tensor<?x8xf32>, %s: f32, %i: index) -> tensor<?x8xf32> {
  %c1 = arith.constant 1 : index
  %c7 = arith.constant 7 : index
  %0 = tensor.insert %s into %a[%i, %c1] : tensor<?x8xf32>
  %1 = tensor.insert %s into %0[%i, %c7] : tensor<?x8xf32>
  return %1 : tensor<?x8xf32>
}""", T)
    a = floats(9, 8)
    wanted = a.copy()
    wanted[5, [1, 7]] = 3
    np.testing.assert_array_equal(fn(a, 3.0, 5), wanted)


PACK = """
func.func @main(%a: tensor<?x10xf32>) -> tensor<3x?x4x4xf32> {{
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %z = arith.constant 7.0 : f32
  %d = tensor.dim %a, %c0 : tensor<?x10xf32>
  %n = arith.ceildivsi %d, %c4 : index
  %e = tensor.empty(%n) : tensor<3x?x4x4xf32>
  %p = linalg.pack %a padding_value(%z : f32) outer_dims_perm = [1, 0] inner_dims_pos = {order} inner_tiles = [4, 4]
    into %e : tensor<?x10xf32> -> tensor<3x?x4x4xf32>
  return %p : tensor<3x?x4x4xf32>
}}"""


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_pack(order: tuple[int, int]):
    fn = tw.compile(PACK.format(order=list(order)), T)
    for t in (1, 4, 13):
        a = floats(t, 10)
        tiled = np.pad(a, ((0, -t % 4), (0, 2)), constant_values=7).reshape(-1, 4, 3, 4)
        wanted = tiled.transpose(2, 0, *(2 * axis + 1 for axis in order))
        np.testing.assert_array_equal(fn(a), wanted)


def test_unpack_drops_the_padding():
    fn = tw.compile("""
func.func @main(%a: tensor<3x?x4x5xf32>) -> tensor<?x10xf32> {
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c5 = arith.constant 5 : index
  %d = tensor.dim %a, %c1 : tensor<3x?x4x5xf32>
  %whole = arith.muli %d, %c5 : index
  %n = arith.subi %whole, %c2 : index
  %e = tensor.empty(%n) : tensor<?x10xf32>
  %p = linalg.unpack %a outer_dims_perm = [1, 0] inner_dims_pos = [1, 0] inner_tiles = [4, 5]
    into %e : tensor<3x?x4x5xf32> -> tensor<?x10xf32>
  return %p : tensor<?x10xf32>
}""", {"T": tw.Dim(1, 64, at=["arg0.1"])})
    for t in (1, 3, 8):
        a = floats(3, t, 4, 5)
        wanted = a.transpose(1, 3, 0, 2).reshape(t * 5, 12)[: 5 * t - 2, :10]
        np.testing.assert_array_equal(fn(a), wanted)


def test_elements_of_four_bits():
    """A weight in i4 as a constant, an activation in i4 as an argument (one a byte), signed and unsigned readings."""
    fn = tw.compile("""
#a = affine_map<(d0, d1) -> (d0, d1)>
#w = affine_map<(d0, d1) -> (d1)>
func.func @main(%a: tensor<?x8xi4>) -> (tensor<?x8xf32>, tensor<?x8xi4>) {
  %c0 = arith.constant 0 : index
  %d = tensor.dim %a, %c0 : tensor<?x8xi4>
  %e = tensor.empty(%d) : tensor<?x8xf32>
  %f = tensor.empty(%d) : tensor<?x8xi4>
  %w = arith.constant dense<[1, -2, 3, -4, 5, -6, 7, -8]> : tensor<8xi4>
  %p:2 = linalg.generic {indexing_maps = [#a, #w, #a, #a], iterator_types = ["parallel", "parallel"]}
      ins(%a, %w : tensor<?x8xi4>, tensor<8xi4>) outs(%e, %f : tensor<?x8xf32>, tensor<?x8xi4>) {
    ^bb0(%x: i4, %y: i4, %o: f32, %q: i4):
      %1 = arith.sitofp %x : i4 to f32
      %2 = arith.uitofp %y : i4 to f32
      %3 = arith.addf %1, %2 : f32
      %4 = arith.addi %x, %y : i4
      linalg.yield %3, %4 : f32, i4
  } -> (tensor<?x8xf32>, tensor<?x8xi4>)
  return %p#0, %p#1 : tensor<?x8xf32>, tensor<?x8xi4>
}""", T)
    w = np.array([1, -2, 3, -4, 5, -6, 7, -8])
    for t in (1, 33):
        a = nibbles(t, 8)
        sums, wrapped = fn(a)
        np.testing.assert_array_equal(sums, (a + w % 16).astype(np.float32))
        np.testing.assert_array_equal(wrapped, (a + w + 8) % 16 - 8)


def test_a_named_product_of_four_bits():
    fn = tw.compile("""
func.func @main(%a: tensor<?x8xi4>, %w: tensor<8x16xi4>) -> tensor<?x16xi32> {
  %c0 = arith.constant 0 : index
  %z = arith.constant 0 : i32
  %d = tensor.dim %a, %c0 : tensor<?x8xi4>
  %e = tensor.empty(%d) : tensor<?x16xi32>
  %f = linalg.fill ins(%z : i32) outs(%e : tensor<?x16xi32>) -> tensor<?x16xi32>
  %p = linalg.matmul ins(%a, %w : tensor<?x8xi4>, tensor<8x16xi4>) outs(%f : tensor<?x16xi32>) -> tensor<?x16xi32>
  return %p : tensor<?x16xi32>
}""", T)
    a, w = nibbles(11, 8), nibbles(8, 16)
    np.testing.assert_array_equal(fn(a, w), a.astype(np.int32) @ w.astype(np.int32))


def test_quantised_named_operations():
    fn = tw.compile("""
func.func @main(%a: tensor<?x6x6x4xi8>, %w: tensor<3x3x4x8xi8>) -> tensor<?x4x4x8xi32> {
  %c0 = arith.constant 0 : index
  %z = arith.constant 0 : i32
  %az = arith.constant 3 : i32
  %wz = arith.constant -2 : i32
  %d = tensor.dim %a, %c0 : tensor<?x6x6x4xi8>
  %e = tensor.empty(%d) : tensor<?x4x4x8xi32>
  %f = linalg.fill ins(%z : i32) outs(%e : tensor<?x4x4x8xi32>) -> tensor<?x4x4x8xi32>
  %p = linalg.conv_2d_nhwc_hwcf_q ins(%a, %w, %az, %wz : tensor<?x6x6x4xi8>, tensor<3x3x4x8xi8>, i32, i32)
    outs(%f : tensor<?x4x4x8xi32>) -> tensor<?x4x4x8xi32>
  return %p : tensor<?x4x4x8xi32>
}""", T)
    a, w = RNG.integers(-128, 128, (3, 6, 6, 4)).astype(np.int8), RNG.integers(-128, 128, (3, 3, 4, 8)).astype(np.int8)
    windows = np.lib.stride_tricks.sliding_window_view(a.astype(np.int32) - 3, (3, 3), axis=(1, 2))
    np.testing.assert_array_equal(fn(a, w), np.einsum("nyxcij,ijcf->nyxf", windows, w.astype(np.int32) + 2))


def test_the_dialect_of_torch_mlir_is_refused_with_the_way_out():
    with pytest.raises(tw.errors.IngestError, match=r"tm_tensor.scan.*torch.export"):
        tw.compile("""
func.func @main(%a: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %0 = "tm_tensor.scan"(%a) : (tensor<?x8xf32>) -> tensor<?x8xf32>
  return %0 : tensor<?x8xf32>
}""", T)


def test_arithmetic_in_four_bits_on_whole_tensors():
    fn = tw.compile("""
func.func @main(%a: tensor<?x8xi4>, %b: tensor<?x8xi4>) -> tensor<?x8xi4> {
  %0 = arith.muli %a, %b : tensor<?x8xi4>
  return %0 : tensor<?x8xi4>
}""", TWO)
    a, b = nibbles(5, 8), nibbles(5, 8)
    np.testing.assert_array_equal(fn(a, b), (a.astype(int) * b + 8) % 16 - 8)


def test_a_scalar_of_four_bits_is_refused():
    with pytest.raises(tw.errors.IngestError, match="scalar of type i4; pass it as i8"):
        tw.compile("func.func @main(%a: tensor<?x8xf32>, %s: i4) -> tensor<?x8xf32> {\n return %a : tensor<?x8xf32>\n}", T)
