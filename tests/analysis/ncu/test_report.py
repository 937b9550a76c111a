"""The reader of `.ncu-rep`: what it makes of NVIDIA's package, here a stand-in, and where the page takes over."""

import runpy
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ddbench.analysis.digested import CaptureProblem
from ddbench.analysis.ncu import report
from ddbench.analysis.ncu.digest import digest_ncu

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("ncu_pages.py"))))
TIME, READ, TENSOR = made.TIME, made.READ, made.TENSOR


@dataclass(frozen=True)
class Metric:
    """A metric of the package: units in its spelling."""

    number: float | None
    spelling: str = ""

    def has_value(self) -> bool:
        return self.number is not None

    def as_double(self) -> float:
        return float(self.number or 0)

    def as_uint64(self) -> int:
        return int(self.number or 0)

    def unit(self) -> str:
        return self.spelling


@dataclass(frozen=True)
class Action:
    """A kernel: metrics by name; names of the ranges by domain, None: profiled without NVTX."""

    text: str
    metrics: dict[str, Metric]
    ranges: dict[str, tuple[str, ...]] | None = field(default_factory=dict)

    def name(self, kind: int) -> str:
        return self.text if kind == 1 else "another spelling"

    def metric_by_name(self, name: str) -> Metric | None:
        return self.metrics.get(name)

    def nvtx_state(self) -> Any:
        if self.ranges is None:
            return None
        domains = [
            SimpleNamespace(name=lambda name=name: name, push_pop_ranges=lambda names=names: names)
            for name, names in self.ranges.items()
        ]
        return SimpleNamespace(domains=lambda: tuple(range(len(domains))), domain_by_id=lambda number: domains[number])


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Install the stand-in with these kernels; the captures folder comes back."""

    def installed(*actions: Action, fails: type[Exception] | None = None) -> Path:
        def load_report(path: str) -> Any:
            assert path.endswith("ncu.ncu-rep")
            if fails is not None:
                raise fails("no report")
            return [list(actions)]

        module = ModuleType("ncu_report")
        vars(module).update(load_report=load_report, IAction=SimpleNamespace(NameBase_DEMANGLED=1))
        monkeypatch.setitem(sys.modules, "ncu_report", module)
        monkeypatch.setattr(report, "is_available", lambda: True)
        (tmp_path / "raw").mkdir()
        (tmp_path / "raw" / "ncu.ncu-rep").write_bytes(b"NVR\0")
        return tmp_path

    return installed


CHIP = {
    "device__attribute_compute_capability_major": Metric(9),
    "device__attribute_compute_capability_minor": Metric(0),
}


def test_report_and_page_give_the_same_counters(install: Any, tmp_path: Path) -> None:
    """Though they spell units in two ways, and the report knows no missing cells but missing metrics."""
    folder = install(
        Action(
            "gemm(int)", {TIME: Metric(1000, "ns"), READ: Metric(4096, "B"), **CHIP}, {"ddbench": ("round/4", "draft")}
        ),
        Action("walk()", {TIME: Metric(2, "us"), READ: Metric(None, "B"), TENSOR: Metric(12.5, "%"), **CHIP}, None),
    )
    by_report = digest_ncu(folder)
    page = made.Page()
    page.add("gemm(int)", ("round/4", "draft"), "1000.00", "4096.00", "")
    page.add("walk()", (), "2000.00", "n/a", "12.50")
    (folder / "raw" / "ncu.ncu-rep").unlink()
    (folder / "raw" / "ncu.csv").write_text(page.text())
    by_page = digest_ncu(folder)
    assert by_report.tables["counters"].equals(by_page.tables["counters"])
    assert by_report.fields == by_page.fields


def test_ranges_of_other_domains_are_nobodys(install: Any) -> None:
    """H6."""
    folder = install(Action("gemm", {TIME: Metric(1, "ns")}, {"NCCL": ("verify",), "<default domain>": ("draft",)}))
    assert digest_ncu(folder).tables["counters"]["basis"].tolist() == ["unattributed"]


@pytest.mark.parametrize("fails", [None, OSError, RuntimeError, ValueError])
def test_a_report_that_cannot_be_read_gives_way_to_its_page(fails: type[Exception] | None, install: Any) -> None:
    """H26: never in silence. The package takes any bytes for a report without kernels."""
    folder = install(fails=fails)
    with pytest.raises(CaptureProblem) as caught:
        digest_ncu(folder)
    assert caught.value.fault.reason == ("nothing" if fails is None else "unreadable")
    page = made.Page()
    page.add("gemm", ("draft",), "1000.00", "4096.00", "1.00")
    (folder / "raw" / "ncu.csv").write_text(page.text())
    found = digest_ncu(folder)
    assert len(found.tables["counters"]) == 3
    assert "ncu.ncu-rep was not read" in found.fields["notes"][0]


def test_bytes_that_are_no_report(tmp_path: Path) -> None:
    """With the package itself, where it is installed."""
    pytest.importorskip("ncu_report")
    (tmp_path / "raw").mkdir()
    for content in (b"", b"NVR\0", bytes(range(256)) * 40):
        (tmp_path / "raw" / "ncu.ncu-rep").write_bytes(content)
        with pytest.raises(CaptureProblem):
            digest_ncu(tmp_path)
