"""The arrows of docs/design.md hold, the contracts that hold them would notice, and the package ships whole."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("interp", "analyses", "reports")
CONTRACTS = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}


def python(*args: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, text=True, check=False)


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    call = "from importlinter.cli import lint_imports_command as lint; lint()"
    return python("-c", call, "--no-cache", cwd=root)


@pytest.mark.parametrize("module", ["interp", "interp.results", "interp.cli", "interp.running", "reports.page"])
def test_torch_is_not_imported_to_read_or_to_draw(module: str) -> None:
    found = python("-c", f"import {module}, sys; print([m for m in ('torch', 'transformers') if m in sys.modules])")
    assert found.returncode == 0, found.stderr
    assert found.stdout == "[]\n"


def test_import_contracts_hold() -> None:
    linted = lint(ROOT)
    assert linted.returncode == 0, linted.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_every_import_contract_notices_a_breach(copy: Path) -> None:
    """One forbidden import for each contract, planted where a person might put it, inside a function."""
    (copy / "analyses" / "planted.py").write_text("def run():\n    import analyses.second\n    import reports\n")
    (copy / "analyses" / "second.py").write_text("")
    for file, line in {
        "interp/running.py": "import analyses.second",
        "interp/attention/planted.py": "from interp.errors import UserError",
        "interp/data/planted.py": "from interp.models import load",
        "interp/results/planted.py": "import torch",
        "reports/planted.py": "import interp.results.planted",
    }.items():
        with (copy / file).open("a") as module:
            module.write(f"\n\ndef planted():\n    {line}\n")
    linted = lint(copy)
    assert linted.returncode == 1, linted.stderr
    for contract in CONTRACTS.values():
        assert f"{contract['name']} BROKEN" in " ".join(linted.stdout.split())


def test_contracts_name_every_module_of_the_library() -> None:
    """A new module of `interp` has to say which side of the arrows it is on."""
    modules = {f"interp.{path.stem}" for path in (ROOT / "interp").iterdir() if path.stem[0].islower()}
    assert set(CONTRACTS["attention"]["forbidden_modules"]) == modules - {"interp.attention"}
    of_reports = {name for name in CONTRACTS["reports"]["forbidden_modules"] if name.startswith("interp")}
    assert of_reports == modules - {"interp.results", "interp.errors"}


@pytest.mark.skipif(find_spec("setuptools") is None, reason="setuptools is not installed: pip install '.[dev]'")
def test_the_wheel_holds_all_that_is_needed_and_nothing_else(copy: Path) -> None:
    built = python("-c", "from setuptools.build_meta import build_wheel; print(build_wheel('dist'))", cwd=copy)
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next((copy / "dist").glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert names == wanted
