"""KernelCost of `host_winograd` configurations. MLIR-free."""

from __future__ import annotations

from math import ceil

from tilewright.passes.spaces.host.host_winograd import HostWinogradConfig, Layer, block_share, cycles
from tilewright.passes.spaces.host.winograd_form import TILES
from tilewright.passes.spaces.kernel_cost import Footprint, KernelCost, fields_of
from tilewright.passes.spaces.workload import Workload
from tilewright.runtime.limits import HostLimits
from tilewright.runtime.shape import Expr

_MANY = 1 << 16  # rows at which transforming filters counts for little


def extents(workload: Workload) -> dict[str, Expr]:
    """Tiles of each size, filters along the vectors, channels are summed over, each batch is work of its own."""
    layer = Layer.of(workload)
    assert layer is not None
    named = {"batch": workload.size("b"), "columns": layer.filters, "depth": layer.channels}
    return named | {f"tiles{m}": layer.tiles(m) for m in TILES}


def kernel_cost(config: HostWinogradConfig, workload: Workload, limits: HostLimits) -> KernelCost:
    layer = Layer.of(workload)
    assert layer is not None
    size, wide, form = layer.element_bytes, config.columns * config.panels, layer.form
    places, transformed = form.places(config.m), form.products(config.m)
    tiles = f"tiles{config.m}"
    channels, vectors = layer.channels.constant or 256, -(-(layer.filters.constant or 256) // config.lanes)
    part = (config.kc or channels) / channels  # of the channels, in the caches at a time
    taken = cycles(config, layer, limits, _MANY)
    share = block_share(config, limits)
    return KernelCost(
        coordinates={**fields_of(config), "mc": float(config.mc // config.mr)},
        tiles={tiles: config.mr, "columns": config.columns},
        pads={"columns": config.lanes},
        least={tiles: max(1, round(2 * max(1.0, config.nv / 2) / (config.mr * config.nv) * config.mr))},
        units={"batch": 1, tiles: config.mc * config.chunks, "columns": wide},
        rate=_MANY * form.taps * channels * vectors / 2 / taken,
        copied=Footprint(ceil(transformed * wide * size * part), "depth"),
        footprints={
            "filters": Footprint(ceil(transformed * wide * size * part), "depth"),
            "image": Footprint(ceil(transformed * config.mc * size * part), "depth"),
        },
        features={
            "sums": config.mr * config.nv,
            "fmas_per_load": config.mr * config.nv / (config.mr + config.nv),
            "peak_share": share,
            "multiplications_saved": form.taps * config.m ** len(form.axes) / transformed,
            "product_bytes": places * config.mc * wide * size,
            "tiles_a_unit": config.mc * config.chunks,
        },
    )
