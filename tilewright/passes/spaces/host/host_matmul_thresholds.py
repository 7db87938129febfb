"""Break-even sizes of what `host_matmul` runs untuned."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.spaces.host.host_block import DISTANT_BYTES
from tilewright.passes.spaces.threshold import threshold
from tilewright.runtime.limits import LINE

_WITH = "zen5-avx512.md: measured with this value alone"
_AVX2_ROWS = "zen3-avx2.md: with the first factor transposed, 256 to 1024 rows and as many values of k"
_XEON = "xeon-avx512.md: measured beside the other ways of reading columns at 6 to 2000 rows"
_TILES = "xeon-avx512.md: 1 to 16 rows in pairs and in tiles"
_AVX2 = "zen3-avx2.md: measured with this value, and before it with none; other values were not kept"


@dataclass(frozen=True)
class Thresholds:
    """Break-even sizes of the untuned choices."""

    panel_rows: int = threshold(127, unit="rows, up to which prepacked panels are read for all rows at once",
                                operator="dense_768x768", results=_WITH)
    unfetched_rows: int = threshold(1, unit="rows, up to which prepacked panels of a cache that is not distant come as "
                                            "the hardware fetches them", operator="dense_768x768",
                                    results="zen5-avx512.md: one, two and four rows by distances of fetches")
    rounded_panels: int = threshold(8, unit="panels that rows rounded to bf16 serve", operator="dense_768x768_bf16",
                                    results=_WITH)
    streamed_vectors: int = threshold(8, unit="vectors of a row of columns, from which it is streamed in two pieces at least",
                                      operator="dense_768x768_argument", results=_WITH)
    short_row: int = threshold(3072, unit="bytes of a row of columns beyond the second cache, up to which the next values of k "
                                           "are fetched for one row of products", operator="dense_3072x768_argument",
                               results="zen5-avx512.md, zen4-avx512.md: one row of products by distances of fetches")
    pair_rows: int = threshold(15, unit="rows, up to which bf16 is read in place where pairs are made of it",
                               operator="dense_768x768_bf16_argument", results=_WITH)
    copied_panels: int = threshold(12, unit="prepacked panels, from which one thread copies rows for them",
                                   operator="dense_768x768", results="xeon-avx512.md: rows in place and copied, quiet and not")
    widened_rows: int = threshold(8, unit="rows, up to which 16 bits are widened where they are multiplied",
                                  operator="dense_768x768_bf16",
                                  results="not measured: f16 gains at 32 rows, and was left as it was up to 8")
    untiled_rows: int = threshold(1, unit="rows, up to which bf16 is multiplied in pairs where the target has tiles",
                                  operator="dense_768x768_bf16", results=_TILES)
    untiled_copies: int = threshold(3, unit="rows, likewise where columns are copied", operator="dense_768x768_bf16_argument",
                                    results=_TILES)
    narrow_bytes: int = threshold(4 * LINE, unit="bytes of a row of columns that is fetched ahead as one stream",
                                  operator="bmm_nn", results=_AVX2)
    narrow_rows: int = threshold(31, unit="rows, up to which such columns are read in place by 4 x 3", operator="bmm_nn",
                                 results=_AVX2)
    narrow_block_rows: int = threshold(7, unit="rows, up to which such columns are read in place by 2 x 4", operator="bmm_nn",
                                       results=_AVX2)
    transposed_rows: int = threshold(12, unit="rows, up to which transposed columns are not copied but summed by dot products",
                                     operator="dense_768x768_nk_argument",
                                     results="xeon6-avx512.md: two to 48 rows by dot products and by copied panels, also by AVX2")
    piece_bytes: int = threshold(2048, unit="bytes of k in a piece", operator="matmul_8192x768", results=_WITH)
    distant_bytes: int = threshold(DISTANT_BYTES, unit="bytes of a last cache that many cores share, whose lines take long to "
                                                  "come", operator="dense_768x768_argument", results=_XEON)
    short_piece_rows: int = threshold(24, unit="rows, up to which columns from such a cache are read in place, in pieces of k "
                                               "that fit the first one", operator="dense_768x768_argument",
                                      results="xeon6-avx512.md: columns in place and copied, by pieces of k, at 16 to 512 rows")
    small_chunk_rows: int = threshold(127, unit="rows of a work unit, up to which copied panels serve more, or k comes in pieces",
                                      operator="dense_3072x768_nk_argument", results=_XEON)
    across_rows: int = threshold(383, unit="rows, up to which a factor that is contiguous along them is read in place",
                                 operator="matmul_1024x1024_argument_avx2", results=_AVX2_ROWS)
    few_cores: int = threshold(4, unit="cores that large units keep busy", operator="matmul_8192x768",
                               results="not measured: both machines of the results have two cores")
    shared_rows: int = threshold(12, unit="rows, from which blocks of rows share the fetches of the next prepacked panel",
                                 operator="lstm_16x512", results="zen3-avx2.md: products of 16 rows that are not near")
    shared_products: int = threshold(1 << 20, unit="products in a work unit of rows, where panels are few",
                                     operator="conv1x1_256x56_64_nchw",
                                     results="zen5-avx512.md: convolutions of 64 channels, whose weights are one panel")
    chunk_rows: int = threshold(512, unit="rows of a work unit at most", operator="matmul_1024x1024_avx2",
                                results="zen3-avx2.md: rows of a work unit, 24 to 1024")
