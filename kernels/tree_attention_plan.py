"""How a call of tree attention on a GPU is cut up: tiles of query rows, and programs for each. Plain numbers, no GPU.

The blocks of all requests and KV heads stand in one line per query tile (KV head after KV head, request after request),
and each program of the tile takes an equal stretch. All tiles but the last have `programs` of them, the last one, which
may have few rows, `last_programs`. A number that the KV heads divide cuts at their edges: each KV head then has
`programs / G` stretches of its own.
Letters: B batch rows, N new tokens, H query heads, G KV heads.
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
TILES_HOPPER = {"narrow": Tile(64, 64, 4, 3, 1), "wide": Tile(128, 64, 8, 3, 1), "long": Tile(128, 128, 8, 2, 1)}
LONG_STRETCH = 6  # blocks of the long tile per program from which on it pays
TILE_32_BIT = Tile(16, 32, 4, 2, 2)  # plain FMAs (IEEE products): for exactness, not for speed

# An H200's cost of a program, for sharing out programs among unequal tiles. Two warp groups measured (batch 16, context
# 8192, 64 nodes); one: it alone has nobody to run beside its softmax, an estimate.
GROUP_US = {1: 1.05, 2: 1.9, 3: 2.85}  # 128 cache rows, by the warp groups that have rows
SEGMENT_US = 1.5  # a request's begin and end in a stretch: queries in, first products alone, partial out
BYTES_PER_US, CACHED_BYTES = 4.0e6, 40e6  # device memory; what the L2 keeps for tiles that come by at other times
MARGIN = 0.97  # unequal shares must promise to be this much faster


class Plan(NamedTuple):
    """Grid of one call, from host-known numbers only."""

    tile: Tile
    num_tiles: int  # query tiles of one KV head
    programs: int  # stretches of the line of blocks, for each tile but the last
    last_programs: int  # for the last tile
    partial_rows: int  # rows of values in the workspace, 0 where one launch does; each also has a max and a sum

    @property
    def grid(self) -> int:
        return (self.num_tiles - 1) * self.programs + self.last_programs


def tree_attention_plan(
    batch: int,
    num_new: int,
    num_heads: int,
    num_kv: int,
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
        long = TILES_HOPPER["long"]
        stretches = max(1, num_sms // (_over(rows, long.rows) * num_kv))
        is_long = batch * _over(bound + num_new, long.block) >= LONG_STRETCH * stretches
        tile = TILES_HOPPER["narrow"] if rows <= 64 else long if is_long else TILES_HOPPER["wide"]
    elif tile is None:
        tile = TILE_32_BIT if element_size == 4 else TILES_16_BIT["narrow" if rows <= 64 else "wide"]
    num_tiles, blocks = _over(rows, tile.rows), _over(bound + num_new, tile.block)
    each = _fullest_waves(num_tiles * num_kv, num_sms * tile.residents) if programs is None else programs
    each = max(1, min(each, batch * blocks)) * num_kv
    shares = (each, each)
    if on_hopper and programs is None:
        row_bytes = element_size * 2 * 128
        shares = _shares(batch, blocks, num_kv, rows, tile, each, num_sms * tile.residents, row_bytes)
    return cut(batch, num_kv, rows, tile, *shares)


def cut(batch: int, num_kv: int, rows: int, tile: Tile, programs: int, last_programs: int) -> Plan:
    """The plan with these numbers of programs per tile, for all KV heads together."""
    num_tiles, segments = _over(rows, tile.rows), num_kv * batch - 1  # slot = program + request + B * KV head
    slots = (num_tiles - 1) * (programs + segments) + last_programs + segments
    used = (last_programs,) if num_tiles == 1 else (programs, last_programs)
    if all(num_kv % count == 0 for count in used):
        slots = 0  # stretches of whole KV heads: every request is whole
    return Plan(tile, num_tiles, programs, last_programs, slots * tile.rows)


def _shares(
    batch: int, blocks: int, num_kv: int, rows: int, tile: Tile, each: int, slots: int, row_bytes: int
) -> tuple[int, int]:
    """(programs, last_programs): unequal where the last tile has work for fewer warp groups and that pays."""
    full, others = tile.rows // 64, _over(rows, tile.rows) - 1
    last = _over(rows - others * tile.rows, 64)
    if others == 0 or last == full or (others + 1) * each > slots:
        return each, each
    line, cache = batch * blocks * num_kv, batch * blocks * num_kv * tile.block * row_bytes

    def microseconds(programs: int, last_programs: int) -> tuple[float, float]:
        """What takes longest, and then the tiles' sum."""
        walks = [
            _over(line, count) * tile.block / 128 * GROUP_US[groups]
            + SEGMENT_US * (1 if batch == 1 and count % num_kv == 0 else 1 + _over(_over(line, count), blocks))
            for count, groups in ((programs, full), (last_programs, last))
        ]
        reads = 1 if programs == last_programs or cache <= CACHED_BYTES else 2  # at one pace they share what is read
        return max(*walks, reads * cache / BYTES_PER_US), sum(walks)

    pairs = [(min((slots - count) // others, line), min(count, line)) for count in range(1, slots - others + 1)]
    best = min(pairs, key=lambda pair: microseconds(*pair))
    return best if microseconds(*best)[0] < MARGIN * microseconds(each, each)[0] else (each, each)


def _fullest_waves(units: int, slots: int) -> int:
    """P such that units * P programs of equal work leave the fewest of the chip's slots idle; fewer where equal."""
    if units <= slots:
        return slots // units
    return min(range(1, 9), key=lambda p: (math.ceil(units * p / slots) / p * (1 + 0.02 * p), p))


def _over(count: int, size: int) -> int:
    return -(-count // size)
