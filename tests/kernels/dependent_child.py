"""The child process of `test_dependent_launch.py`: `dependent_child.py STEM` compiles the entries of the AOT table of
`kernels/STEM.py` for sm_90, one of each kernel and set of flags, and answers with JSON: what each does before it waits
for the launch before it."""

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
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
WAIT, LAUNCH = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
# What may touch memory that others see; a prefetch changes nothing and gives nothing.
ACCESS = re.compile(r"(?:ld|st|atom|red|multimem|cp)\b(?!\.(?:param|shared|local|const|async\.bulk\.prefetch))")
BRANCH = re.compile(r"(?:bra|brx|ret|exit|call|trap)\b")


def before_waiting(ptx: str, names: list[str]) -> dict[str, Any]:
    """-> of the kernel's text up to its first wait: the arguments whose memory is accessed, and the branches.

    The text before a wait that lies behind no branch is what runs before it. Addresses are followed from the
    parameters; one that comes from none of them is "?".
    """
    body = ptx[ptx.index(".entry") :]
    waits = body.find(WAIT)
    text, origins = body[: waits if waits >= 0 else len(body)], {}
    accessed, branches = set(), 0
    for line in text.splitlines():
        line = line.split("//")[0].strip().rstrip(";")
        line = re.sub(r"^@!?%\w+\s+", "", line)
        if not (found := re.match(r"([a-z][\w.:]*)\s+(.*)", line)):
            continue
        op, operands = found.groups()
        branches += BRANCH.match(op) is not None
        registers = re.findall(r"%\w+", operands)
        places = {int(i) for i in re.findall(r"_param_(\d+)", operands)}
        if ACCESS.match(op):
            addresses = re.findall(r"\[\s*(%\w+)", operands)  # of a copy, the last is the source
            accessed |= origins.get(addresses[-1], {"?"}) if addresses else {"?"}
        if op.startswith(("st", "bar", "cp")) or not registers:
            continue
        is_vector = operands.startswith("{")
        outputs = re.findall(r"%\w+", operands[: operands.index("}")]) if is_vector else registers[:1]
        inputs = {"of " + names[i] if i < len(names) else "?" for i in places}
        for register in registers[len(outputs) :]:
            inputs |= origins.get(register, set())
        for register in outputs:
            origins[register] = inputs
    pointers = {name.removeprefix("of ") for name in accessed}
    return {"waits": waits >= 0, "accessed": sorted(pointers), "branches": branches}


def in_machine_code(cubin: bytes) -> dict[str, Any]:
    """-> how many accesses of global memory and ends of the program stand before the wait, in the machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([TOOL, "--dump-sass", file.name], capture_output=True, text=True, check=True).stdout
    names = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)", text, re.M)
    before = names[: names.index("ACQBULK")] if "ACQBULK" in names else names
    touching = ("LDG", "STG", "LD", "ST", "ATOM", "ATOMG", "RED", "LDGSTS", "UTMALDG", "UTMASTG", "UBLKCP")
    return {
        "waits": "ACQBULK" in names,
        "launches": "PREEXIT" in names,
        "launches_first": "PREEXIT" in before,
        "accesses": sum(name in touching for name in before),
        "ends": before.count("EXIT"),
    }


def compiled(entry: dict[str, Any]) -> dict[str, Any]:
    kernel = entry["kernel"]
    signature = {name: entry["signature"].get(name, "constexpr") for name in kernel.arg_names}
    make = GluonASTSource if kernel.is_gluon() else ASTSource
    places = [kernel.arg_names.index(name) for name in entry.get("divisible_by_16", ())]
    source = make(kernel, signature, entry["constexprs"], {(i,): [["tt.divisibility", 16]] for i in places})
    options = {"num_warps": entry["num_warps"], "num_stages": entry.get("num_stages", 3)}
    if kernel.is_gluon():
        del options["num_stages"]
    result = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    names = []
    for name, kind in signature.items():
        if kind.startswith("tensordesc"):  # a descriptor, the sizes and strides of two dims
            names += [name] * 5
        elif kind != "constexpr":
            names.append(name)
    ptx = result.asm["ptx"]
    text = before_waiting(ptx, names) | {"launches": LAUNCH in ptx}
    return {"kernel": kernel.fn.__name__, "text": text, "code": in_machine_code(result.asm["cubin"])}


def entries(table: tuple[dict[str, Any], ...]) -> dict[str, dict[str, Any]]:
    """The first entry of each kernel, and of each set of what it is compiled for that is not a size.

    Parts are no size: they are loads one after the other, and have other warps.
    """
    found = {}
    for entry in table:
        constants = entry["constexprs"].items()
        flags = sorted((name, value) for name, value in constants if isinstance(value, bool) or name == "PARTS")
        found.setdefault((entry["kernel"].fn.__name__, str(flags)), entry)
    return {entry["name"]: entry for entry in found.values()}


if __name__ == "__main__":
    table = importlib.import_module(f"ddbench.kernels.{sys.argv[1]}").AOT
    answers = {name: compiled(entry) for name, entry in entries(table).items()}
    sys.stdout.write("ANSWER" + json.dumps(answers))
