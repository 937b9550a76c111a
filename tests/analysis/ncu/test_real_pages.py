"""Real pages of an H200 (ncu 2025.3.1, nano-k2, ddtree, bfloat16), with what names a machine replaced and most columns
left out: round 1 of the eager engine in base units, in ncu's own units and in the locale en_US; the first 148 kernels
of round 1 as one replayed graph, and the same 148 of an nsys capture of it.
"""

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ddbench.analysis.digested import CaptureProblem, Digested
from ddbench.analysis.ncu.counters import COUNTERS
from ddbench.analysis.ncu.digest import digest_ncu
from ddbench.analysis.ncu.stages import bare_name

FIXTURES = Path(__file__).with_name("fixtures")


def page_of(name: str) -> bytes:
    return gzip.decompress((FIXTURES / f"{name}.csv.gz").read_bytes())


def digested(content: bytes, folder: Path, timeline: bytes = b"") -> Digested:
    (folder / "raw").mkdir(exist_ok=True)
    (folder / "raw" / "ncu.csv").write_bytes(content)
    if timeline:
        (folder / "nsys-ops.parquet").write_bytes(timeline)
    return digest_ncu(folder)


def per_kernel(found: Digested) -> pd.DataFrame:
    """One row per kernel with its counters as columns."""
    table = found.tables["counters"]
    columns = ["index", "name", "stage", "basis", "is_replayed"]
    return table.pivot(index=columns, columns="metric", values="value").reset_index()


def test_an_eager_round(tmp_path: Path) -> None:
    found = digested(page_of("eager"), tmp_path)
    kernels = per_kernel(found)
    assert len(kernels) == 180
    assert set(kernels["basis"]) == {"launch"}
    assert Counter(kernels["stage"]) == {
        "draft": 39, "tree_build": 13, "tree_compile": 1, "verify": 116, "accept": 3, "commit": 4, "materialize": 4,
    }  # fmt: skip
    assert set(found.tables["counters"]["metric"]) == set(COUNTERS)
    assert found.fields["dram_peak_bytes_per_s"] == pytest.approx(4.75e12, rel=0.02)
    assert [(line.basis, line.count) for line in found.fields["ledger"]] == [("launch", 180)]
    assert found.fields["ledger"][0].time_ns == kernels["time"].sum()
    assert kernels["occupancy_limit"].between(0, 100).all()
    moved = (kernels["dram_read"] + kernels["dram_write"]) / (kernels["time"] * 1e-9)
    assert (100 * moved / found.fields["dram_peak_bytes_per_s"] - kernels["dram_share"]).abs().max() < 1.0


def test_short_kernels_have_shares_beyond_everything(tmp_path: Path) -> None:
    """H34: kept as they are, and said."""
    found = digested(page_of("eager"), tmp_path)
    assert per_kernel(found)["l2_hits"].max() > 500
    assert any(note.startswith("l2_hits: above 100 %") for note in found.fields["notes"])


def test_units_and_locale_make_no_difference(tmp_path: Path) -> None:
    """H32: to the digits that ncu writes, which are six decimals of the unit it chose or two of the base unit."""
    base = per_kernel(digested(page_of("eager"), tmp_path))
    local = per_kernel(digested(page_of("eager_en"), tmp_path))
    assert base.equals(local)
    own = per_kernel(digested(page_of("eager_auto"), tmp_path))
    for key, counter in COUNTERS.items():
        written = {"ns": 0.0, "bytes": 1.0, "%": 0.006, "waves": 0.0}[counter.unit]
        np.testing.assert_allclose(own[key], base[key], rtol=1e-6, atol=written, err_msg=key)
    assert own["name"].equals(base["name"])


def test_a_replayed_round_without_a_timeline(tmp_path: Path) -> None:
    """What ncu records with the nodes of a replay are the ranges around the replay: the round, and no stage."""
    found = digested(page_of("round_graph"), tmp_path)
    assert {line.basis for line in found.fields["ledger"]} == {"unattributed"}
    assert any("148 kernels of round 1 have no stage: no nsys capture" in note for note in found.fields["notes"])


def test_a_replayed_round_takes_its_stages_from_the_timeline(tmp_path: Path) -> None:
    """Four times the shared expert ran beside the router: 7 kernels each, in another order in the two tools."""
    timeline = FIXTURES / "round_graph-nsys-ops.parquet"
    kernels = per_kernel(digested(page_of("round_graph"), tmp_path, timeline.read_bytes()))
    expected = pd.read_parquet(timeline)
    assert set(kernels["basis"]) == {"capture"}
    assert kernels["is_replayed"].all()
    assert Counter(kernels["stage"]) == Counter(expected["stage"].astype(str))
    mine, theirs = ([bare_name(name) for name in frame["name"]] for frame in (kernels, expected))
    assert mine != theirs
    assert Counter(zip(mine, kernels["stage"], strict=True)) == Counter(
        zip(theirs, expected["stage"].astype(str), strict=True)
    )


@pytest.mark.parametrize("name", ["eager", "eager_auto", "round_graph"])
def test_a_damaged_page_gives_a_fault_or_counters(name: str, tmp_path: Path) -> None:
    whole = page_of(name)
    rng, outcomes = np.random.default_rng(len(name)), set()
    for attempt in range(24):
        content = bytearray(whole)
        for bit in rng.integers(0, 8 * len(whole), 1 + attempt % 3):
            content[bit // 8] ^= 1 << (bit % 8)
        for damaged in (bytes(content), whole[: rng.integers(len(whole))]):
            try:
                values = digested(damaged, tmp_path).tables["counters"]["value"]
                assert np.isfinite(values).all()
                assert (values >= 0).all()
                outcomes.add("read")
            except CaptureProblem as problem:
                outcomes.add(problem.fault.reason)
    assert "truncated" in outcomes
    assert "read" in outcomes
