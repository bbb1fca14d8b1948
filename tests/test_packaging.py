"""The wheel holds the programs and nothing else, and runs in an empty folder; one place says the version."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import odp

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"odp_platform.py"}
EXPERIMENTS = "odp/research/reproductions/"
SMALL = "synthetic:n_users=110,n_items=30,ratings_per_user=12"
PACKAGES = {"odp", "device_runtime", "distributor", "server", "trusted_aggregator"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # A copy: a build writes beside the sources.
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        source, target = ROOT / name, folder / "tree" / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--wheel-dir", str(folder), str(folder / "tree")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the wheel's packages are found before those of this checkout."""
    target = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(target)
    return os.environ | {"PYTHONPATH": str(target)}


@pytest.mark.slow
def test_the_wheel_has_every_module_and_no_test(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in names} == PACKAGES | MODULES
    modules = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py*")
        if path.suffix in (".py", ".pyi") and "__pycache__" not in path.parts
    }
    experiments = {name for name in modules if name.startswith(EXPERIMENTS)}
    assert len(experiments) > 10
    assert modules - experiments <= names
    assert not [name for name in names if name.startswith(EXPERIMENTS)]
    assert "odp/py.typed" in names


@pytest.mark.slow
def test_the_wheel_says_where_published_experiments_are(installed: dict[str, str], tmp_path: Path) -> None:
    # Without the finder of this checkout, which would find what the wheel lacks.
    code = (
        "import sys; sys.meta_path[:] = [one for one in sys.meta_path if 'Editable' not in repr(one)]; "
        "sys.argv = ['odp', 'reproduce', 'local']; from odp_platform import main; main()"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, env=installed, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode != 0
    assert "are in ODP's repository, not in the installed package: clone the" in " ".join(done.stderr.split())


def _run(installed: dict[str, str], folder: Path, *arguments: str) -> str:
    """What `odp` of the wheel prints."""
    command = [sys.executable, "-P", "-m", "odp", *arguments]
    done = subprocess.run(command, cwd=folder, env=installed, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.processes
def test_the_wheel_runs_in_an_empty_folder(installed: dict[str, str], tmp_path: Path) -> None:
    where = subprocess.run(
        [sys.executable, "-P", "-c", "import odp, server; print(odp.__file__, server.__file__)"],
        cwd=tmp_path, env=installed, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert all(name.startswith(installed["PYTHONPATH"]) for name in where)
    assert _run(installed, tmp_path, "--version") == f"odp {odp.__version__}\n"
    assert "ε" in _run(installed, tmp_path, "data", "check", SMALL)


# cli/test_demo.py runs the same programs from this checkout in CI.
@pytest.mark.proof
@pytest.mark.processes
def test_the_wheel_starts_its_services(installed: dict[str, str], tmp_path: Path) -> None:
    assert "all programs stopped" in _run(installed, tmp_path, "demo", "--data", SMALL, "--rank", "0")


@pytest.fixture(scope="module")
def foreign_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A distribution ``odp`` of somebody else, with modules and a command by the names of ours."""
    made = tmp_path_factory.mktemp("foreign") / "odp-3.1-py3-none-any.whl"
    files = {
        "odp/__init__.py": "raise SystemExit('the other program ran')\n",
        "odp/cli/main.py": "raise SystemExit('the other program ran')\n",
        "odp-3.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: odp\nVersion: 3.1\n",
        "odp-3.1.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, "odp-3.1.dist-info/RECORD"])
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in [*files.items(), ("odp-3.1.dist-info/RECORD", record)]:
            archive.writestr(name, text)
    return made


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "foreign_first",
    [pytest.param(True, marks=pytest.mark.proof), False],
    ids=["installed before ODP", "installed after ODP"],
)
def test_r353_beside_the_other_distribution_the_command_is_one_error_and_runs_again_without_it(
    wheel: Path, foreign_wheel: Path, tmp_path: Path, foreign_first: bool
) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    # The libraries, from the environment of this test; a path file inside that folder is not read.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def pip(*arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet"]
        subprocess.run([*command, *arguments], check=True, timeout=120)

    def install(archive: Path, *options: str) -> None:
        pip("install", "--no-index", "--no-deps", "--no-compile", *options, str(archive))

    def odp_command(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(tmp_path / "venv" / "bin" / "odp"), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    for archive in (foreign_wheel, wheel) if foreign_first else (wheel, foreign_wheel):
        install(archive)
    refused = odp_command("doctor")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert f"the distribution 'odp' is installed beside ODP, in {site / 'odp-3.1.dist-info'}" in refused.stderr
    # What the error says to do.
    pip("uninstall", "--yes", "odp")
    install(wheel, "--force-reinstall")
    assert odp_command("--version").stdout == f"odp {odp.__version__}\n"


def test_one_place_says_the_version_and_the_changelog_has_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "odp.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", odp.__version__)
    assert importlib.metadata.version("odp-platform") == odp.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == odp.__version__


def test_every_version_of_python_that_is_promised_is_a_classifier() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: Python :: 3." in line]
    assert versions == ["3.11", "3.12", "3.13"]
    assert project["requires-python"] == f">={versions[0]}"


def test_every_public_extra_has_a_check() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    checks = (ROOT / "tools" / "check_extras.py").read_text(encoding="utf-8")
    for extra in set(extras) - {"dev", "bench"}:
        assert f'    "{extra}": ' in checks, extra
