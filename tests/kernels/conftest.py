"""Triton kernels where there is no GPU: checks are interpreted and kernels compiled in child processes.

triton decides at import whether it interprets, so the process of the tests cannot do both. A test module that takes the
fixtures below defines `check_<claim>` functions, which the child runs, and `kernels`, the module under test. With a GPU
the same checks run there, compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def _path(*first: Path) -> str:
    """The caller's own path for modules behind these: dependencies may be there."""
    return os.pathsep.join(filter(None, (*map(str, first), os.environ.get("PYTHONPATH"))))


def _child(mode: str, module: Path, env: dict[str, str]) -> dict[str, object]:
    command = [sys.executable, str(Path(__file__).with_name("triton_child.py")), mode, str(module)]
    env = {**os.environ, "PYTHONPATH": _path(ROOT), "OMP_NUM_THREADS": "1", **env}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def checked(request: pytest.FixtureRequest) -> dict[str, object]:
    """Each check of the module by name -> "" or what went wrong."""
    return _child("check", request.path, {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> dict[str, object]:
    """Each entry of the kernel module's AOT table by name -> registers, stack, shared bytes, accesses; for sm_90."""
    return _child("compile", request.path, {"TRITON_INTERPRET": "0"})


@pytest.fixture(scope="session")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, object]]:
    """Runs a program of the module's own, which prints `ANSWER` and JSON, with a compile cache of its own."""

    def run(code: str, **environment: str) -> dict[str, object]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
        cache = str(tmp_path_factory.mktemp("cache"))
        paths = {
            "PYTHONPATH": _path(ROOT, Path(__file__).parent),
            "TRITON_CACHE_DIR": cache,
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=inherited | paths | environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.rpartition("ANSWER")[2])

    return run
