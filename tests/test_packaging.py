"""What is shipped is the tree, it runs from a wheel, from a bare checkout, and next to a foreign `kernels` package, and
the README's commands are ones that exist.

Every build and import happens in a copy of the checkout, in child processes that see no installed ddbench: `-S` keeps
path files (an editable install) out, and the environment's packages are named on PYTHONPATH instead.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import click
import pytest

import ddbench

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHIPPED = {  # folder in the checkout -> folder in the wheel
    "ddbench": "ddbench",
    "kernels": "ddbench/kernels",
    "reference": "ddbench/reference",
    "experiments": "ddbench/experiments",
}
SITE_PACKAGES = tuple(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))
IMPORT_ALL = """
import importlib, importlib.util, pathlib, ddbench, ddbench.kernels, ddbench.reference
has_triton = importlib.util.find_spec("triton") is not None  # an extra
for package in (ddbench.kernels, ddbench.reference):
    for folder in package.__path__:
        print(folder)
        for path in pathlib.Path(folder).glob("*.py"):
            if has_triton or not path.stem.endswith(("_triton", "_gluon")):
                importlib.import_module(f"{package.__name__}.{path.stem}")
"""


def python(*arguments: str, cwd: Path, path: tuple[Path, ...] = ()) -> str:
    """Standard output of a fresh interpreter that sees `path`, the environment's packages and no installed ddbench."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), *SITE_PACKAGES])}
    done = subprocess.run(
        [sys.executable, "-S", *arguments], cwd=cwd, env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what ships and what describes it, without build outputs of earlier runs."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in SHIPPED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source") / "ddbench"  # building leaves files behind: not in `checkout`
    shutil.copytree(checkout, source)
    out = tmp_path_factory.mktemp("wheel")
    command = [
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(out),
        str(source),
    ]
    python(*command, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked: what an installation puts into site-packages."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def tree_files(checkout: Path) -> dict[str, str]:
    """Name in the wheel -> name in the checkout, of every file in the shipped folders."""
    files = [path for name in SHIPPED for path in (checkout / name).rglob("*") if path.is_file()]
    names = [path.relative_to(checkout).as_posix() for path in files]
    return {SHIPPED[name.partition("/")[0]] + "/" + name.partition("/")[2]: name for name in names}


def test_wheel_holds_the_tree_and_nothing_else(checkout: Path, wheel: Path) -> None:
    """Every file under the shipped folders is in the wheel, byte for byte; beside it only metadata."""
    expected = tree_files(checkout)
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert names == expected.keys()
        for name in names:
            assert archive.read(name) == (checkout / expected[name]).read_bytes(), name


def test_wheel_holds_the_shipped_pair(wheel: Path) -> None:
    """Data two folders below a package without `__init__.py` is what packaging loses most easily."""
    with zipfile.ZipFile(wheel) as archive:
        suffixes = {Path(name).suffix for name in archive.namelist() if "/models/pretrained/nano-k2/" in name}
    assert {".json", ".safetensors"} <= suffixes


def test_wheel_metadata(wheel: Path) -> None:
    """The command, the licence and the version are where installers look."""
    with zipfile.ZipFile(wheel) as archive:
        info = f"ddbench-{ddbench.__version__}.dist-info"
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
        assert "ddbench = ddbench.__main__:program" in entry_points
        assert archive.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        assert "License-Expression: Apache-2.0" in archive.read(f"{info}/METADATA").decode()


def test_source_distribution_holds_what_the_wheel_needs(checkout: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(checkout, source)
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    python("-c", build, str(tmp_path), cwd=source)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        names = {name.partition("/")[2] for name in members.getnames()}
    assert {*tree_files(checkout).values(), "pyproject.toml", "README.md", "LICENSE"} - names == set()


def test_wheel_imports_from_elsewhere(installed: Path, tmp_path: Path) -> None:
    folders = python("-c", IMPORT_ALL, cwd=tmp_path, path=(installed,)).splitlines()
    assert folders == [str(installed / "ddbench" / name) for name in ("kernels", "reference")]


def test_bare_checkout_imports_from_elsewhere(checkout: Path, tmp_path: Path) -> None:
    folders = python("-c", IMPORT_ALL, cwd=tmp_path, path=(checkout,)).splitlines()
    assert folders == [str(checkout / name) for name in ("kernels", "reference")]


def test_bare_checkout_answers(checkout: Path, tmp_path: Path) -> None:
    here = python("-m", "ddbench", "--version", cwd=checkout)
    elsewhere = python("-m", "ddbench", "--version", cwd=tmp_path, path=(checkout,))
    assert ddbench.__version__ in here
    assert here == elsewhere


def test_installed_package_does_not_mount_its_neighbours(tmp_path: Path) -> None:
    """Only a checkout is extended by its sibling folders: site-packages is full of other people's."""
    shutil.copytree(ROOT / "ddbench", tmp_path / "ddbench", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "kernels").mkdir()
    script = "import ddbench; print(*ddbench.__path__)"
    assert python("-c", script, cwd=tmp_path) == str(tmp_path / "ddbench")
    (tmp_path / "pyproject.toml").touch()
    assert python("-c", script, cwd=tmp_path) == f"{tmp_path / 'ddbench'} {tmp_path}"


def test_foreign_kernels_package_and_ours_live_together(checkout: Path, tmp_path: Path) -> None:
    """`kernels` is a published package: it wins as `kernels`, even from within the checkout; ours stays ours."""
    foreign = tmp_path / "kernels"
    foreign.mkdir()
    (foreign / "__init__.py").write_text("ORIGIN = 'foreign'\n")
    script = "import kernels, ddbench.kernels; print(kernels.ORIGIN, *ddbench.kernels.__path__)"
    for order in ((tmp_path, checkout), (checkout, tmp_path)):
        assert python("-c", script, cwd=checkout, path=order) == f"foreign {checkout / 'kernels'}"


def test_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" not in project
    assert re.fullmatch(r"\d+\.\d+\.\d+", ddbench.__version__)


def readme_commands() -> list[str]:
    """The lines of the README's code blocks."""
    blocks = re.findall(r"^```\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    return [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("line", readme_commands())
def test_readme_command_is_understood(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make has the target; the command line knows the command, its options and their values. Nothing is run."""
    program, *arguments = shlex.split(line)
    if program == "make":
        assert subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, timeout=60).returncode == 0
        return
    assert program == "ddbench"
    from ddbench.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "smoke").mkdir(parents=True)
    command: click.Command = main
    context = command.make_context("ddbench", list(arguments))
    while isinstance(command, click.Group) and arguments != ["--help"]:
        name, found, arguments = command.resolve_command(context, arguments)
        assert found is not None, name
        command = found
        if arguments != ["--help"]:
            context = command.make_context(name, list(arguments), parent=context)


def test_readme_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^):#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
