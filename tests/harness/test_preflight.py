"""Memory of weights that are made on a GPU, told before they are made (other refusals: tests/test_bad_input.py)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ddbench.errors import UserError
from ddbench.harness import preflight
from ddbench.harness.plan import engine_capabilities, make_plan
from ddbench.models.drafter import Drafter
from ddbench.models.shapes import DRAFTERS, TARGETS
from ddbench.models.target import Target
from ddbench.spec import EngineSpec, ExperimentSpec, WorkloadSpec

H200_BYTES = 150_000_000_000


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=H200_BYTES))
    monkeypatch.setattr(preflight.psutil, "virtual_memory", lambda: SimpleNamespace(total=2**30))


def on_meta(name: str) -> tuple[nn.Module, ...]:
    with torch.device("meta"):
        drafter = DRAFTERS[name]
        return Target(TARGETS[name], drafter.target_layer_ids), Drafter(drafter, TARGETS[name].max_context)


def check(**engine: str) -> None:
    spec = EngineSpec(**{"device": "cuda", "dtype": "bfloat16", "experts": "packed", **engine})  # type: ignore[arg-type]
    workload = WorkloadSpec(prompts="random", prompt_tokens=2048, num_requests=1, max_new_tokens=4)
    experiment = ExperimentSpec(name="x", question="?", arms=("ar",), engine=spec, workload=workload)
    preflight.check_requests(make_plan(experiment, engine_capabilities()))


def test_a_rank_of_kimi_with_its_drafter_takes_what_was_worked_out() -> None:
    """71 GB of INT4 experts, and attention, shared experts, embeddings, head and drafter: about 95 GiB."""
    spec = EngineSpec(target="k2.6-ep8-rank", dtype="bfloat16", experts="packed")
    modules = on_meta("k2.6-ep8-rank")
    packed = preflight.device_bytes(modules, spec)
    assert packed == pytest.approx(sum(t.nbytes for m in modules for t in m.buffers()) + 2 * parameters(modules))
    assert packed == pytest.approx(95 * 2**30, rel=0.01)
    unpacked = preflight.device_bytes(modules, spec.model_copy(update={"experts": "dequantized"}))
    assert unpacked - packed == pytest.approx(60 * 48 * 3 * 7168 * 2048 * 1.5, rel=1e-6)


def parameters(modules: tuple[nn.Module, ...]) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("target", ["k2.6-ep8-rank", "k2.6-ep8-rank-l8", "qwen3-8b"])
def test_host_memory_does_not_matter_to_what_is_made_on_the_gpu(target: str) -> None:
    check(target=target)
    with pytest.raises(UserError, match="of host memory, this machine has 1 GiB"):
        check(target="qwen3-4b", device="cpu")


@pytest.mark.usefixtures("gpu")
def test_what_a_gpu_cannot_hold_is_told_before_it_is_made() -> None:
    with pytest.raises(UserError, match=r"GiB of GPU memory, this machine has 140 GiB: use experts=packed"):
        check(target="k2.6-ep8-rank", experts="dequantized")
    with pytest.raises(UserError, match="of GPU memory"):
        check(target="kimi-k2.6")
