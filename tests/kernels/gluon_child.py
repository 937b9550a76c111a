"""The child process of the tests of Gluon kernels: `gluon_child.py STEM` compiles each entry of the AOT table of
`kernels/STEM.py` for sm_90 and answers with JSON: registers, stack, shared bytes, instructions by name, and for each
innermost loop with products its accesses to the stack."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def compiled(entry: dict[str, Any]) -> dict[str, Any]:
    kernel = entry["kernel"]
    signature = {name: entry["signature"].get(name, "constexpr") for name in kernel.arg_names}
    unknown = {*entry["signature"], *entry["divisible_by_16"], *entry["constexprs"]} - set(kernel.arg_names)
    assert not unknown, f"{entry['name']} names arguments the kernel has not: {unknown}"
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in entry["divisible_by_16"]}
    source = GluonASTSource(kernel, signature, entry["constexprs"], attributes)
    options = {"num_warps": entry["num_warps"]}
    result = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(result.asm["cubin"])
        file.flush()
        usage, sass = (
            subprocess.run([TOOL, mode, file.name], capture_output=True, text=True, check=True).stdout
            for mode in ("--dump-resource-usage", "--dump-sass")
        )
    numbers = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    names = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+(?:\.[0-9]+x[0-9]+x[0-9]+)?)", sass, re.M)
    counts = {name: names.count(name) for name in sorted(set(names))}
    counts["wgmma waits"] = len(re.findall(r"WARPGROUP\.DEPBAR", sass))
    return {**numbers, "shared": result.metadata.shared, "instructions": counts, "loops": stack_accesses(sass)}


def stack_accesses(sass: str) -> list[int]:
    lines = [(int(at, 16), text) for at, text in re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", sass, re.M)]
    loops = []
    for end, text in lines:
        if (back := re.match(r"@!?U?P\w+ BRA\S* (?:\w+, )?0x([0-9a-f]+)", text)) and (start := int(back[1], 16)) < end:
            body = [inside for at, inside in lines if start <= at <= end]
            if any("HGMMA" in inside for inside in body) and not any(start <= other < end for other, _ in loops):
                loops.append((end, sum("LDL" in inside or "STL" in inside for inside in body)))
    return [count for _, count in loops]


if __name__ == "__main__":
    table = importlib.import_module(f"ddbench.kernels.{sys.argv[1]}").AOT
    sys.stdout.write("ANSWER" + json.dumps({entry["name"]: compiled(entry) for entry in table}))
