"""The child process of the tests of Triton kernels: `triton_child.py check|compile TEST_MODULE`; answers with JSON."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy_scalars  # noqa: F401 what it changes is all it does
import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(module: ModuleType) -> dict[str, str]:
    """Run every check; -> its name and "" or the traceback."""
    answers = {}
    for name, function in vars(module).items():
        if name.startswith("check_"):
            try:
                function()
                answers[name] = ""
            except (Exception, pytest.fail.Exception):  # noqa: BLE001 every failure is an answer
                answers[name] = traceback.format_exc()
    return answers


def compiled(entry: dict[str, Any]) -> dict[str, Any]:
    """Compile one AOT entry for sm_90; -> what the machine code needs and how it accesses memory."""
    kernel = entry["kernel"]
    signature = {name: entry["signature"].get(name, "constexpr") for name in kernel.arg_names}
    unknown = {*entry["signature"], *entry["divisible_by_16"], *entry["constexprs"]} - set(kernel.arg_names)
    assert not unknown, f"{entry['name']} names arguments the kernel has not: {unknown}"
    places = [kernel.arg_names.index(name) for name in entry["divisible_by_16"]]
    make_source = GluonASTSource if kernel.is_gluon() else ASTSource
    source = make_source(kernel, signature, entry["constexprs"], {(i,): [["tt.divisibility", 16]] for i in places})
    options = {"num_warps": entry["num_warps"], "num_stages": entry["num_stages"]}
    result = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(result.asm["cubin"])
        file.flush()
        command = [CUOBJDUMP, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    accesses = re.findall(r"\b((?:ld|st)\.global\S*)|\b(bar\.sync)", result.asm["ptx"])
    return {**numbers, "shared": result.metadata.shared, "accesses": [one or other for one, other in accesses]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    mode, path = sys.argv[1:]
    tests = load(path)
    answer = check(tests) if mode == "check" else {entry["name"]: compiled(entry) for entry in tests.kernels.AOT}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
