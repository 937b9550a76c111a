"""The rules that keep the tree readable, checked on the syntax trees of every module: who may import whom, sizes,
docstrings, one broad except, no output or environment reads outside their place, no mutable module state.

A rule is a function `Module -> complaints`. Each is applied to the whole tree and, because a check that cannot fail is
a defect, to small sources that break it (`BREAKS`) and to small sources that must pass (`KEEPS`).
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from ddbench.spec import PART_FIELDS

ROOT = Path(__file__).resolve().parent.parent
PRODUCT_FOLDERS = ("ddbench", "kernels", "reference")


@dataclass(frozen=True)
class Import:
    """One imported dotted name; `from a import b` counts as `a.b`."""

    name: str
    line: int
    is_deferred: bool  # inside a function, or only for type checkers: not executed on import

    def is_in(self, *packages: str) -> bool:
        return any(self.name == package or self.name.startswith(package + ".") for package in packages)


@dataclass(frozen=True)
class Module:
    """A Python file: its path from the root and its source."""

    path: str
    source: str

    @property
    def name(self) -> str:
        """Dotted name as imported: `kernels/x.py` is `ddbench.kernels.x`."""
        parts = list(Path(self.path).with_suffix("").parts)
        if parts[0] in ("kernels", "reference"):
            parts.insert(0, "ddbench")
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def is_in(self, *packages: str) -> bool:
        return Import(self.name, 0, False).is_in(*packages)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, self.path)

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(self._walk(self.tree, is_deferred=False))

    def _walk(self, node: ast.AST, is_deferred: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            deferred = is_deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            deferred = deferred or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            for name in self._imported(child):
                yield Import(name, child.lineno, deferred)  # type: ignore[attr-defined]
            yield from self._walk(child, deferred)

    def _imported(self, node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            package = self.name if self.path.endswith("__init__.py") else self.name.rpartition(".")[0]
            base = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            return [".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names]
        is_call = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__"))
        if is_call and node.args and isinstance(node.args[0], ast.Constant):  # type: ignore[attr-defined]
            return [str(node.args[0].value)]  # type: ignore[attr-defined]
        return []


Rule = Callable[[Module], Iterator[str]]


@dataclass(frozen=True)
class Layer:
    """Modules under `members` may import `ours` from ddbench and `others` from elsewhere; None: anything."""

    members: tuple[str, ...]
    ours: tuple[str, ...]
    others: tuple[str, ...] | None = None


BASE = (
    "ddbench.captured",
    "ddbench.errors",
    "ddbench.experiment_file",
    "ddbench.records",
    "ddbench.spec",
    "ddbench.files",
    "ddbench.units",
    "ddbench.wheels",
)
PARTS = tuple(f"ddbench.engine.{name}" for name in PART_FIELDS)
STAGES = "ddbench.engine.stages"  # plain names, no torch
# What parts share: the engine's records and protocols, never the round, the scheduler or each other.
PART_IMPORTS = (
    *(f"ddbench.engine.{name}" for name in ("types", "stages", "batch", "kv_cache", "probe", "launch")),
    *(f"ddbench.engine.{name}" for name in ("oracle", "profiles")),  # what drafts of an oracle are made of
    *("ddbench.kernels", "ddbench.models.inputs", "ddbench.models.attention", "ddbench.spec", "ddbench.errors"),
)
RECORDING_IMPORTS = tuple(f"ddbench.engine.{name}" for name in ("batch", "launch", "probe", "stages"))
NUMBERS = ("numpy", "pandas", "pyarrow", "scipy")
PARQUET = "ddbench.parquet_files"  # where no torch is
MODELS = ("ddbench.models", "ddbench.kernels", "ddbench.ops", *BASE)

OPBENCH_HARNESS = tuple(
    f"ddbench.harness.{name}" for name in ("ceilings", "environment", "lock", "plan", "progress", "store")
)
OPBENCH_REPORT = (
    *("ddbench.analysis.roofline", "ddbench.analysis.gate", "ddbench.analysis.counters"),
    *(f"ddbench.report.{name}" for name in ("cells", "console", "document", "gate_report", "markdown")),
)
TIMELINE = tuple(f"ddbench.report.{name}" for name in ("build", "console", "document", "html", "plots", "profiled"))

LAYERS = (
    Layer(("ddbench.kernels",), ("ddbench.kernels",), ("torch", "triton")),
    Layer(("ddbench.reference",), ("ddbench.reference",), ("torch", "numpy")),
    Layer(BASE, ("ddbench.experiments", *BASE), ("pydantic", "platformdirs")),
    Layer((PARQUET,), (), ("pyarrow",)),
    Layer(("ddbench.ops", "ddbench.testing"), ("ddbench.testing", "ddbench.kernels", "ddbench.reference", *BASE)),
    Layer(("ddbench.models",), MODELS),
    Layer(
        ("ddbench.train.evaluate", "ddbench.train.profile"),  # commands' bodies: run the engine as the harness does
        ("ddbench.train", "ddbench.harness", "ddbench.engine", "ddbench.analysis.acceptance", *MODELS),
    ),
    Layer(
        ("ddbench.train.evaluate_sets",),
        ("ddbench.train", "ddbench.harness", "ddbench.engine", "ddbench.workloads", *MODELS),
    ),
    Layer(("ddbench.train.chat",), ("ddbench.train", "ddbench.workloads", *MODELS)),  # prompts as an evaluation asks
    Layer(("ddbench.train",), ("ddbench.train", *MODELS)),
    Layer(("ddbench.engine.executor", "ddbench.engine.prefill"), ("ddbench.engine.recording", *PART_IMPORTS)),
    Layer(PARTS, PART_IMPORTS),
    Layer(("ddbench.engine.recording",), RECORDING_IMPORTS),  # of any work that is launched, whatever it computes
    Layer(("ddbench.engine",), ("ddbench.engine", *MODELS)),
    Layer(
        ("ddbench.harness",),
        # names of NVTX ranges and of counters have one home, beside the analysis that finds them
        (
            *("ddbench.harness", "ddbench.engine", "ddbench.experiments", "ddbench.workloads"),
            *("ddbench.analysis.nsys.names", "ddbench.analysis.ncu.counters", PARQUET, *MODELS),
        ),
    ),
    Layer(
        ("ddbench.workloads",),  # fetched and shown where no torch is
        ("ddbench.workloads", "ddbench.commands", *BASE),
        ("click", "jinja2", "platformdirs", "pydantic", "rich"),
    ),
    Layer(
        ("ddbench.opbench",),  # a command's body: measures with the harness's ceilings and reports as the reports do
        ("ddbench.opbench", "ddbench.commands", "ddbench.testing", *OPBENCH_HARNESS, *OPBENCH_REPORT, *MODELS),
    ),
    Layer(
        ("ddbench.doctor",),  # runs where next to nothing is installed: torch is asked in a process of its own
        ("ddbench.doctor", *(f"ddbench.harness.{name}" for name in ("environment", "tool_faults", "tools")), *BASE),
        ("click", "nvtx", "rich", "torch"),
    ),
    Layer(
        ("ddbench.timeline",),  # a command's body: reads a run as the reports do, and draws with their palette
        (
            *("ddbench.timeline", "ddbench.analysis", "ddbench.commands", "ddbench.harness.store"),
            *(STAGES, *TIMELINE, *BASE),
        ),
        ("click", "jinja2", "markupsafe", "numpy", "pandas", "rich"),
    ),
    Layer(("ddbench.modelstore",), ("ddbench.modelstore", "ddbench.commands", *MODELS)),  # a command's body
    Layer(
        ("ddbench.scrub",),  # reads and writes run folders; no torch
        (
            *("ddbench.scrub", "ddbench.commands", "ddbench.harness.environment", "ddbench.harness.store"),
            *("ddbench.analysis.captures", "ddbench.analysis.tables", PARQUET, *BASE),
        ),
        ("click", "pyarrow", "pydantic", "rich"),
    ),
    Layer(  # NVIDIA's reader of ncu's reports is optional
        ("ddbench.analysis.ncu.report",), ("ddbench.analysis", *BASE), ("ncu_report",)
    ),
    Layer(("ddbench.analysis",), ("ddbench.analysis", STAGES, PARQUET, *BASE), NUMBERS),
    Layer(
        ("ddbench.report",),
        ("ddbench.report", "ddbench.analysis", STAGES, *BASE),
        (*NUMBERS, "jinja2", "junitparser", "markupsafe", "matplotlib", "rich"),
    ),
)
READERS = tuple(
    f"ddbench.{name}" for name in ("analysis", "report", "cli", "gate_cli", "opbench.gate")
)  # without torch
VERSION = ("ddbench", "ddbench.__version__")  # `import ddbench` itself brings nothing along


def layers_are_kept(module: Module) -> Iterator[str]:
    """Every import goes down: the first layer that holds the module says what it may import."""
    layer = next((layer for layer in LAYERS if module.is_in(*layer.members)), None)
    if layer is None:
        return
    for found in module.imports:
        root = found.name.partition(".")[0]
        if root == "ddbench":
            is_own_check = module.name == "ddbench.harness.check" and found.is_in(
                "ddbench.reference", "ddbench.testing"
            )
            is_sibling = module.is_in("ddbench.kernels", "ddbench.reference")
            is_allowed = found.is_in(*layer.ours) or (found.name in VERSION and not is_sibling)
            if not (is_allowed or is_own_check):
                yield f"{found.line}: imports {found.name}; allowed: {', '.join(layer.ours)}"
        elif layer.others is not None and root not in layer.others and root not in sys.stdlib_module_names:
            yield f"{found.line}: imports {found.name}; allowed: {', '.join(layer.others)} and the standard library"


def references_stay_out_of_the_product(module: Module) -> Iterator[str]:
    """The specification is compared with, never computed with."""
    if not module.is_in("ddbench.reference", "ddbench.ops", "ddbench.testing", "ddbench.harness.check", "tests"):
        for found in module.imports:
            if found.is_in("ddbench.reference"):
                yield f"{found.line}: imports {found.name}"


def parts_do_not_meet(module: Module) -> Iterator[str]:
    """Only the gathering table, the engine, and the proof of one part see the part modules."""
    seers = tuple(f"ddbench.engine.{name}" for name in ("parts", "engine", "distribution_check"))
    if module.is_in("ddbench.engine") and module.name not in seers:
        for found in module.imports:
            if found.is_in(*PARTS) and not found.is_in(module.name):
                yield f"{found.line}: imports {found.name}"


def commands_import_inside(module: Module) -> Iterator[str]:
    """`ddbench --help`, `report` and `compare` start fast and where no torch is: heavy imports sit in the command."""
    commands = (
        "ddbench.cli",
        "ddbench.commands",
        "ddbench.doctor.cli",
        "ddbench.modelstore.cli",
        "ddbench.scrub.cli",
        "ddbench.timeline.cli",
        "ddbench.opbench.cli",
        "ddbench.train.cli",
        "ddbench.workloads.cli",
    )
    if module.name in ("ddbench", "ddbench.__main__", *commands):
        for found in module.imports:
            is_light = found.name.partition(".")[0] in ("click", *sys.stdlib_module_names)
            is_light = is_light or found.name in VERSION or found.is_in(*commands, STAGES, *BASE)
            if not (found.is_deferred or is_light):
                yield f"{found.line}: imports {found.name} at start-up"


def siblings_are_imported_as_ours(module: Module) -> Iterator[str]:
    """A bare `import kernels` would find a third-party package of that name where one is installed."""
    for found in module.imports:
        if found.is_in("kernels", "reference", "experiments"):
            yield f"{found.line}: imports {found.name}; write ddbench.{found.name}"


def modules_are_short(module: Module) -> Iterator[str]:
    """400 lines; 600 for a kernel."""
    ceiling = 600 if module.is_in("ddbench.kernels") else 400
    num_lines = len(module.source.splitlines())
    if num_lines > ceiling:
        yield f"1: {num_lines} lines, ceiling {ceiling}"


def functions_are_short(module: Module) -> Iterator[str]:
    """80 lines outside kernels, decorators not counted."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not module.is_in("ddbench.kernels"):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if num_lines > 80:
                yield f"{node.lineno}: {node.name} has {num_lines} lines, ceiling 80"


def modules_say_what_they_are(module: Module) -> Iterator[str]:
    if not (ast.get_docstring(module.tree) or "").strip():
        yield "1: no module docstring"


def names_say_something(module: Module) -> Iterator[str]:
    """A file is one noun of the domain; a drawer for leftovers is not."""
    if Path(module.path).stem in ("utils", "util", "helpers", "common", "misc"):
        yield f"1: a file called {Path(module.path).name}"


def output_has_one_place(module: Module) -> Iterator[str]:
    """Terminal text is made in cli.py, commands.py and report/console.py; a child process may answer its parent."""
    if module.name not in ("ddbench.cli", "ddbench.commands", "ddbench.report.console"):
        answers = [
            node for node in module.tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        ]
        allowed = {inner for node in answers for inner in ast.walk(node)}
        for node in ast.walk(module.tree):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            is_write = called in ("sys.stdout.write", "sys.stderr.write") and node not in allowed
            if called in ("print", "pprint", "click.echo") or is_write:
                yield f"{node.lineno}: calls {called}"  # type: ignore[attr-defined]


def _is_broad(node: ast.AST | None) -> bool:
    if isinstance(node, ast.Tuple):
        return any(_is_broad(element) for element in node.elts)
    return node is None or ast.unparse(node) in ("Exception", "BaseException")


def broad_excepts(module: Module) -> Iterator[str]:
    """Every handler or `suppress` that swallows whatever comes."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type):
            yield f"{node.lineno}: broad except"
        is_suppress = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress")
        if is_suppress and any(_is_broad(argument) for argument in node.args):  # type: ignore[attr-defined]
            yield f"{node.lineno}: broad suppress"  # type: ignore[attr-defined]


def excepts_are_narrow(module: Module) -> Iterator[str]:
    """The one exception is the case boundary, counted by `test_only_the_case_boundary_catches_everything`."""
    if module.name not in CASE_BOUNDARY:
        yield from broad_excepts(module)


CASE_BOUNDARY = ("ddbench.harness.run", "ddbench.harness.worker")


def nothing_is_unfinished(module: Module) -> Iterator[str]:
    markers = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")) + r")\b")
    for number, line in enumerate(module.source.splitlines(), 1):
        if markers.search(line):
            yield f"{number}: {line.strip()[:60]}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and node.id in ("NotImplementedError", "NotImplemented"):
            yield f"{node.lineno}: {node.id}"


CONTAINERS = ("list", "dict", "set", "bytearray", "defaultdict", "deque", "Counter", "OrderedDict")
MUTATORS = ("add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update")


def _is_container(node: ast.AST | None) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).rpartition(".")[2] in CONTAINERS
    return isinstance(node, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def _module_names(module: Module) -> Iterator[tuple[str, ast.AST | None, int]]:
    for node in module.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and not target.id.startswith("__"):
                    yield target.id, node.value, node.lineno


def modules_hold_no_state(module: Module) -> Iterator[str]:
    """Module-level containers are tables (UPPER_CASE) and nobody writes to a table after import."""
    tables = set()
    for name, value, line in _module_names(module):
        if _is_container(value):
            tables.add(name)
            if not name.isupper():
                yield f"{line}: module-level container {name}"
    for function in ast.walk(module.tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _writes(function, tables)


def _writes(function: ast.FunctionDef | ast.AsyncFunctionDef, tables: set[str]) -> Iterator[str]:
    """`global` statements, and stores into or mutating calls on a module-level table."""
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            yield f"{node.lineno}: global {', '.join(node.names)}"
        is_store = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
        is_mutator = isinstance(node, ast.Attribute) and node.attr in MUTATORS
        if (is_store or is_mutator) and isinstance(node.value, ast.Name) and node.value.id in tables:  # type: ignore[attr-defined]
            yield f"{node.lineno}: writes to {node.value.id}"  # type: ignore[attr-defined]


def the_environment_has_one_reader(module: Module) -> Iterator[str]:
    """No environment variable changes a result: only the environment record and the command line look at them."""
    if module.name not in ("ddbench.harness.environment", "ddbench.cli"):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv", "os.environb"):
                yield f"{node.lineno}: reads {ast.unparse(node)}"
        for found in module.imports:
            if found.is_in("os.environ", "os.getenv"):
                yield f"{found.line}: imports {found.name}"


RULES: tuple[Rule, ...] = (
    layers_are_kept,
    references_stay_out_of_the_product,
    parts_do_not_meet,
    commands_import_inside,
    siblings_are_imported_as_ours,
    modules_are_short,
    functions_are_short,
    modules_say_what_they_are,
    names_say_something,
    output_has_one_place,
    excepts_are_narrow,
    nothing_is_unfinished,
    modules_hold_no_state,
    the_environment_has_one_reader,
)


def claims_are_made(module: Module) -> Iterator[str]:
    """A test without an assertion claims nothing."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            called = [ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)]
            is_claim = any(isinstance(inner, ast.Assert) for inner in ast.walk(node))
            if not (is_claim or any("assert" in name or name == "pytest.raises" for name in called)):
                yield f"{node.lineno}: {node.name} asserts nothing"


# What also holds for the tests themselves.
TEST_RULES: tuple[Rule, ...] = (siblings_are_imported_as_ours, nothing_is_unfinished, claims_are_made)

# Sources that each rule must complain about.
BREAKS: tuple[tuple[Rule, str, str], ...] = (
    (layers_are_kept, "kernels/x.py", "import numpy"),
    (layers_are_kept, "kernels/x.py", "from ddbench import spec"),
    (layers_are_kept, "kernels/x.py", "from ddbench import __version__"),
    (layers_are_kept, "kernels/x.py", "from ddbench.reference import x"),
    (layers_are_kept, "reference/x.py", "def f():\n    from ddbench.kernels.x import x"),
    (layers_are_kept, "reference/x.py", "import triton"),
    (layers_are_kept, "ddbench/spec.py", "import torch"),
    (layers_are_kept, "ddbench/records.py", "from .engine import types"),
    (layers_are_kept, "ddbench/ops.py", "import ddbench.models.target"),
    (layers_are_kept, "ddbench/models/x.py", "from ddbench.engine.types import Batch"),
    (layers_are_kept, "ddbench/models/x.py", "from ..harness import run"),
    (layers_are_kept, "ddbench/engine/round.py", "from ddbench.harness.capture import Clock"),
    (layers_are_kept, "ddbench/engine/x.py", "import importlib\nimportlib.import_module('ddbench.report.html')"),
    (layers_are_kept, "ddbench/engine/sampling.py", "from ddbench.engine.round import run_round"),
    (layers_are_kept, "ddbench/engine/sampling.py", "from ddbench.models.target import Target"),
    (layers_are_kept, "ddbench/engine/sampling.py", "from ddbench.engine.recording import record"),
    (layers_are_kept, "ddbench/engine/recording.py", "from ddbench.engine.round import run_round"),
    (layers_are_kept, "ddbench/harness/x.py", "from ddbench.analysis import frames"),
    (layers_are_kept, "ddbench/harness/x.py", "from ddbench.reference import x"),
    (layers_are_kept, "ddbench/analysis/x.py", "import torch.nn as nn"),
    (layers_are_kept, "ddbench/analysis/x.py", "from ddbench.engine.types import Request"),
    (layers_are_kept, "ddbench/analysis/x.py", "from ddbench.harness.store import Store"),
    (layers_are_kept, "ddbench/report/x.py", "def f():\n    import torch"),
    (layers_are_kept, "ddbench/train/x.py", "from ddbench.engine.engine import Engine"),
    (references_stay_out_of_the_product, "ddbench/cli.py", "def f():\n    from ddbench import reference"),
    (references_stay_out_of_the_product, "ddbench/train/x.py", "from ddbench.reference.x import x"),
    (parts_do_not_meet, "ddbench/engine/round.py", "from ddbench.engine import sampling"),
    (parts_do_not_meet, "ddbench/engine/executor.py", "from .sampling import SAMPLERS"),
    (commands_import_inside, "ddbench/cli.py", "import ddbench.harness.run"),
    (commands_import_inside, "ddbench/cli.py", "import pandas"),
    (siblings_are_imported_as_ours, "tests/test_x.py", "from kernels import rope"),
    (modules_are_short, "ddbench/x.py", "x = 1\n" * 401),
    (modules_are_short, "kernels/x.py", "x = 1\n" * 601),
    (functions_are_short, "ddbench/x.py", "def f():\n" + "    x = 1\n" * 80),
    (modules_say_what_they_are, "ddbench/x.py", "import os"),
    (modules_say_what_they_are, "ddbench/engine/__init__.py", ""),
    (names_say_something, "ddbench/engine/utils.py", ""),
    (output_has_one_place, "ddbench/harness/x.py", "print('x')"),
    (output_has_one_place, "ddbench/harness/x.py", "import sys\nsys.stdout.write('x')"),
    (excepts_are_narrow, "ddbench/x.py", "try:\n    f()\nexcept:\n    pass"),
    (excepts_are_narrow, "ddbench/x.py", "try:\n    f()\nexcept (ValueError, Exception):\n    pass"),
    (excepts_are_narrow, "kernels/x.py", "try:\n    f()\nexcept BaseException as error:\n    raise"),
    (excepts_are_narrow, "ddbench/x.py", "with contextlib.suppress(Exception):\n    f()"),
    (nothing_is_unfinished, "ddbench/x.py", "def f():\n    raise NotImplementedError"),
    (nothing_is_unfinished, "ddbench/x.py", "x = 1  # TO" + "DO: more"),
    (modules_hold_no_state, "ddbench/x.py", "cache = {}"),
    (modules_hold_no_state, "ddbench/x.py", "_seen: set[int] = set()"),
    (modules_hold_no_state, "ddbench/x.py", "count = 0\ndef f():\n    global count\n    count += 1"),
    (modules_hold_no_state, "ddbench/x.py", "CACHE = {}\ndef f(x):\n    CACHE[x] = 1"),
    (modules_hold_no_state, "ddbench/x.py", "NAMES = []\ndef f(x):\n    NAMES.append(x)"),
    (the_environment_has_one_reader, "ddbench/x.py", "import os\nx = os.environ.get('X')"),
    (the_environment_has_one_reader, "ddbench/x.py", "from os import getenv"),
    (claims_are_made, "tests/test_x.py", "def test_x():\n    f()"),
)

# Sources next to those that must not be complained about.
KEEPS: tuple[tuple[Rule, str, str], ...] = (
    (layers_are_kept, "kernels/x.py", "import math\nimport torch\nfrom ddbench.kernels.rope import rope"),
    (layers_are_kept, "ddbench/engine/round.py", "from ddbench.engine.types import Batch\nfrom ..models import inputs"),
    (layers_are_kept, "ddbench/engine/sampling.py", "from ddbench.kernels import accept_walk"),
    (layers_are_kept, "ddbench/engine/tree_build.py", "from ddbench.engine.launch import Launch"),
    (layers_are_kept, "ddbench/engine/executor.py", "from ddbench.engine.recording import record"),
    (layers_are_kept, "ddbench/harness/x.py", "import ddbench\nfrom ddbench import __version__"),
    (layers_are_kept, "ddbench/harness/check.py", "from ddbench.reference import x"),
    (layers_are_kept, "ddbench/analysis/x.py", "import pandas as pd\nfrom ddbench.engine.stages import Stage"),
    (references_stay_out_of_the_product, "ddbench/ops.py", "from ddbench.reference import x"),
    (parts_do_not_meet, "ddbench/engine/parts.py", "from ddbench.engine.sampling import SAMPLERS"),
    (commands_import_inside, "ddbench/cli.py", "import click\ndef f():\n    import pandas"),
    (siblings_are_imported_as_ours, "tests/test_x.py", "from ddbench.kernels import rope"),
    (modules_are_short, "kernels/x.py", "x = 1\n" * 600),
    (functions_are_short, "ddbench/x.py", "def f():\n" + "    x = 1\n" * 79),
    (output_has_one_place, "ddbench/cli.py", "print('x')"),
    (output_has_one_place, "ddbench/x.py", "if __name__ == '__main__':\n    sys.stdout.write('{}')"),
    (excepts_are_narrow, "ddbench/x.py", "try:\n    f()\nexcept (ValueError, OSError):\n    pass"),
    (nothing_is_unfinished, "ddbench/x.py", "def f():\n    assert x, 'methodology'"),
    (modules_hold_no_state, "ddbench/x.py", "NAMES = {'a': 1}\ndef f():\n    seen = []\n    seen.append(NAMES['a'])"),
    (the_environment_has_one_reader, "ddbench/harness/environment.py", "import os\nx = os.environ"),
    (claims_are_made, "tests/test_x.py", "def test_x():\n    with pytest.raises(UserError):\n        f()"),
    (claims_are_made, "tests/test_x.py", "def test_x():\n    torch.testing.assert_close(a, b)"),
)


def modules_in(*folders: str) -> list[Module]:
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [Module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


def _name(value: object) -> str | None:
    return getattr(value, "__name__", None)


@pytest.mark.parametrize("rule", RULES, ids=_name)
def test_tree_keeps(rule: Rule) -> None:
    complaints = [f"{module.path}:{text}" for module in modules_in(*PRODUCT_FOLDERS) for text in rule(module)]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("rule", TEST_RULES, ids=_name)
def test_tests_keep(rule: Rule) -> None:
    complaints = [f"{module.path}:{text}" for module in modules_in("tests") for text in rule(module)]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(("rule", "path", "source"), BREAKS, ids=_name)
def test_rule_sees_what_breaks_it(rule: Rule, path: str, source: str) -> None:
    assert list(rule(Module(path, source))) != []


@pytest.mark.parametrize(("rule", "path", "source"), KEEPS, ids=_name)
def test_rule_lets_pass_what_keeps_it(rule: Rule, path: str, source: str) -> None:
    assert list(rule(Module(path, source))) == []


def test_every_rule_has_a_source_that_breaks_it() -> None:
    assert {rule for rule, _, _ in BREAKS} == {*RULES, *TEST_RULES}


def test_every_layer_has_modules() -> None:
    """A rule about a module that was renamed would hold for nothing."""
    modules = modules_in(*PRODUCT_FOLDERS)
    members = [member for layer in LAYERS for member in layer.members]
    assert [member for member in members if not any(module.is_in(member) for module in modules)] == []


def test_only_the_case_boundary_catches_everything() -> None:
    modules = [module for module in modules_in(*PRODUCT_FOLDERS) if module.name in CASE_BOUNDARY]
    found = [f"{module.path}:{text}" for module in modules for text in broad_excepts(module)]
    assert len(found) <= 1, found


def loaded_on_import(start: str, modules: dict[str, Module]) -> dict[str, str]:
    """Foreign packages that `import start` loads, each with the module of ours that asks for it."""
    foreign: dict[str, str] = {}
    reached, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        parents = [name.rsplit(".", depth)[0] for depth in range(name.count(".") + 1)]  # a.b.c, a.b, a
        for found in [parent for parent in parents if parent in modules and parent not in reached]:
            reached.add(found)
            for imported in modules[found].imports:
                if not imported.is_deferred and imported.is_in("ddbench"):
                    waiting.append(imported.name)
                elif not imported.is_deferred:
                    foreign.setdefault(imported.name.partition(".")[0], found)
    return foreign


def test_reading_results_never_loads_torch() -> None:
    """`ddbench report`, `compare` and `gate` run where no torch is installed: nothing they import asks for it."""
    modules = {module.name: module for module in modules_in(*PRODUCT_FOLDERS)}
    starts = [name for name in modules if name.startswith(READERS)]
    heavy = {start: loaded_on_import(start, modules).keys() & {"torch", "triton"} for start in starts}
    assert starts
    assert not any(heavy.values()), heavy


def test_loading_is_followed_through_modules_and_packages() -> None:
    sources = {
        "ddbench/report/html.py": "from ddbench.analysis import frames",
        "ddbench/analysis/__init__.py": "import scipy",
        "ddbench/analysis/frames.py": "import pandas\ndef f():\n    import torch",
        "ddbench/engine/round.py": "from ddbench.engine.types import Batch",
        "ddbench/engine/types.py": "import torch",
    }
    modules = {module.name: module for module in (Module(path, source) for path, source in sources.items())}
    assert loaded_on_import("ddbench.report.html", modules).keys() == {"pandas", "scipy"}
    assert loaded_on_import("ddbench.engine.round", modules) == {"torch": "ddbench.engine.types"}


@pytest.mark.parametrize("folder", ["kernels", "reference"])
def test_sibling_folders_are_flat_and_no_packages(folder: str) -> None:
    """An `__init__.py` there would win over a third-party package called `kernels`."""
    entries = {path.name for path in (ROOT / folder).iterdir() if path.name != "__pycache__"}
    assert entries == {path.name for path in (ROOT / folder).glob("*.py")} - {"__init__.py"}


def test_every_kernel_has_a_reference_of_the_same_name() -> None:
    stems = {folder: {path.stem for path in (ROOT / folder).glob("*.py")} for folder in ("kernels", "reference")}
    plain = {stem.removesuffix("_triton").removesuffix("_gluon").removesuffix("_plan") for stem in stems["kernels"]}
    # How they are launched, and what is asked for ahead of them: no ops, as no result depends on them. And `linear`'s
    # other kernel, for large weights.
    assert plain - stems["reference"] == {"dependent_launch", "prefetch", "stream_linear"}
