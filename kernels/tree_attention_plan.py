"""How a call of tree attention on a GPU is cut up: tiles of query rows, and programs for each. Plain numbers, no GPU.

The blocks of all requests and KV heads stand in one line per query tile (KV head after KV head, request after request),
and each of the tile's programs takes an equal stretch. A number that the KV heads divide cuts at their edges: each KV
head then has `programs / G` stretches of its own. All tiles have equally many programs, also a last one with few rows:
with fewer of them for it, and more for the others, tiles walk at different paces and no longer share what is read in
the L2, so the cache is read two to three times (measured on an H200: batch 16, context 8192, 65 tokens, 40 programs for
each tile: 362 us; 48 and 32: 395; 51 and 30: 422), and a warp group alone takes 1.4 to 1.5 us for 128 rows, not half of
what two take together.
Heads of up to 64 dims take narrow tiles whatever the number of rows. Measured on an H200, GQA 9/3/64, us a call, wide
then narrow tiles:

    batch, context    33 tokens      65 tokens      129 tokens
    1, 256            6.30  4.95     6.54  5.24      7.60   6.55
    1, 1024           6.44  5.42     7.54  7.08     10.24   9.37
    2, 256            6.42  5.34     7.44  6.29     10.25   8.45
    4, 256            7.18  6.33     8.74  8.41     15.76  11.84

Within SmolLM2's rounds, verify in us, of two runs that differ in nothing else there: 513 tokens at batch 1 1482 and
1440, at batch 4 2997 and 2896, at batch 16 8151 and 7773; 33 tokens at batch 16 1351 and 1316.

Letters: B batch rows, N new tokens, H query heads, G KV heads, D head dim.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Tile(NamedTuple):
    """Shape of the attention kernel: query rows and cache rows of a step, warps, pipeline depth, CTAs an SM holds."""

    rows: int
    block: int
    warps: int
    stages: int
    residents: int


# Measured on an H200. 64 rows is what one warpgroup's wgmma works on: fewer rows in a step do not save anything.
TILES_16_BIT = {"narrow": Tile(64, 64, 4, 3, 2), "wide": Tile(128, 64, 8, 3, 1)}
NARROW_DIM = 64  # up to which the narrow one serves any number of rows
TILES_HOPPER = {
    "narrow": Tile(64, 64, 4, 3, 1),
    "wide": Tile(128, 64, 8, 3, 1),
    "long": Tile(128, 128, 8, 2, 1),
    "tall": Tile(192, 64, 12, 3, 1),
}
LONG_STRETCH = 6  # blocks of the long tile per program from which on it pays, as does the tall one where it suffices
TILE_32_BIT = Tile(16, 32, 4, 2, 2)  # plain FMAs (IEEE products): for exactness, not for speed


class Plan(NamedTuple):
    """Grid of one call, from host-known numbers only."""

    tile: Tile
    num_tiles: int  # query tiles of one KV head
    programs: int  # of each tile, for all KV heads together: stretches of the line of blocks
    partial_rows: int  # rows of values in the workspace, 0 where one launch does; each also has a max and a sum

    @property
    def grid(self) -> int:
        return self.num_tiles * self.programs


def tree_attention_plan(
    batch: int,
    num_new: int,
    num_heads: int,
    num_kv: int,
    dim: int,
    bound: int,  # host integer >= lengths.max()
    element_size: int,
    num_sms: int,
    tile: Tile | None = None,
    programs: int | None = None,
    on_hopper: bool = False,  # the kernel of `tree_attention_gluon`
) -> Plan:
    """How a call is cut up. `tile` and `programs` (per tile and KV head) override the choice, for tuning."""
    rows = num_new * (num_heads // num_kv)
    if tile is None and on_hopper:
        tile = _hopper_tile(batch, rows, num_kv, bound + num_new, num_sms)
    elif tile is None and element_size == 4:
        tile = TILE_32_BIT
    elif tile is None:
        tile = TILES_16_BIT["narrow" if rows <= 64 or dim <= NARROW_DIM else "wide"]
    num_tiles, blocks = _over(rows, tile.rows), _over(bound + num_new, tile.block)
    each = _fullest_waves(num_tiles * num_kv, num_sms * tile.residents) if programs is None else programs
    each = max(1, min(each, batch * blocks)) * num_kv
    return cut(batch, num_kv, rows, tile, each)


def cut(batch: int, num_kv: int, rows: int, tile: Tile, programs: int) -> Plan:
    """The plan with this number of programs per tile, for all KV heads together."""
    num_tiles = _over(rows, tile.rows)
    slots = num_tiles * (programs + num_kv * batch - 1)  # slot = program + request + B * KV head
    if num_kv % programs == 0:
        slots = 0  # stretches of whole KV heads: every request is whole
    return Plan(tile, num_tiles, programs, slots * tile.rows)


def _hopper_tile(batch: int, rows: int, num_kv: int, length: int, num_sms: int) -> Tile:
    long = TILES_HOPPER["long"]
    stretches = max(1, num_sms // (_over(rows, long.rows) * num_kv))
    if rows <= 64:
        return TILES_HOPPER["narrow"]
    if batch * _over(length, long.block) < LONG_STRETCH * stretches:
        return TILES_HOPPER["wide"]
    return TILES_HOPPER["tall"] if long.rows < rows <= TILES_HOPPER["tall"].rows else long


def _fullest_waves(units: int, slots: int) -> int:
    """P such that units * P programs of equal work leave the fewest of the chip's slots idle; fewer where equal."""
    if units <= slots:
        return slots // units
    return min(range(1, 9), key=lambda p: (math.ceil(units * p / slots) / p * (1 + 0.02 * p), p))


def _over(count: int, size: int) -> int:
    return -(-count // size)
