"""A user's module named as one of ODP's packages hides nothing, or is named in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder, with modules whose names clash with ODP's and with Python's own."""
    (tmp_path / "server.py").write_text("raise SystemExit('the user\\'s server ran')\n")
    (tmp_path / "queue.py").write_text("raise SystemExit('the user\\'s queue ran')\n")
    (tmp_path / "distributor").mkdir()
    (tmp_path / "distributor" / "__init__.py").touch()
    (tmp_path / "app.py").write_text("import odp\nprint(odp.Device.__name__)\n")
    return tmp_path


def python(folder: Path, *arguments: str, path: str = str(ROOT)) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": path}
    environment.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_python_m_odp_takes_nothing_from_the_current_folder(folder: Path) -> None:
    (folder / "queue.py").unlink()  # Python itself imports it before any code of ours
    done = python(folder, "-m", "odp", "data", "list", "--csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("name,licence,homepage")


def test_a_search_path_that_hides_a_package_is_one_line(folder: Path) -> None:
    (folder / "queue.py").unlink()
    done = python(folder, "-P", "-m", "odp", "data", "list", path=f"{folder}{os.pathsep}{ROOT}")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"ODP's package 'distributor' is hidden by {folder / 'distributor'}: rename that" in done.stderr


def test_an_app_beside_such_modules_gets_its_device(folder: Path) -> None:
    (folder / "queue.py").unlink()
    done = python(folder, "app.py")
    assert (done.returncode, done.stdout) == (0, "Device\n"), done.stderr


@pytest.mark.parametrize("first", ["", "import device_runtime\n"])
def test_an_app_whose_own_package_hides_the_devices_is_told(folder: Path, first: str) -> None:
    (folder / "queue.py").unlink()
    (folder / "device_runtime.py").touch()
    (folder / "app.py").write_text(f"{first}import odp\nodp.Device\n")
    done = python(folder, "app.py")
    assert f"'device_runtime' is hidden by {folder / 'device_runtime.py'}" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("metadata", ["odp-3.1.dist-info", "ODP-0.1.0.dist-info", "odp-3.1-py3.11.egg-info"])
@pytest.mark.parametrize("command", [("-m", "odp", "--version"), ("-c", "from odp_platform import main; main()")])
def test_r353_the_command_beside_another_distribution_named_odp_is_one_line(
    tmp_path: Path, metadata: str, command: tuple[str, ...]
) -> None:
    (tmp_path / metadata).mkdir()
    done = python(tmp_path, "-P", *command, path=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"odp: the distribution 'odp' is installed beside ODP, in {tmp_path / metadata}" in done.stderr
    assert done.stderr.endswith("Run `pip uninstall odp`, then install 'odp-platform' again\n")


def test_r353_an_app_beside_another_distribution_named_odp_is_told(tmp_path: Path) -> None:
    (tmp_path / "odp-3.1.dist-info").mkdir()
    done = python(tmp_path, "-P", "-c", "import odp; odp.Glm", path=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.stderr.splitlines()[-1].startswith("odp.errors.ConfigurationError: the distribution 'odp' is installed")


def test_r353_the_command_runs_no_code_of_another_package_named_odp(tmp_path: Path) -> None:
    (tmp_path / "odp").mkdir()
    (tmp_path / "odp" / "__init__.py").write_text("raise SystemExit('the other package ran')\n")
    code = "from odp_platform import main; main()"
    done = python(tmp_path, "-P", "-c", code, path=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"odp: ODP's package 'odp' is hidden by {tmp_path / 'odp'}: rename that")


@pytest.mark.parametrize("metadata", ["odp_platform-0.1.0.dist-info", "odp_cli-2.0.dist-info", "odpy-1.0.dist-info"])
def test_distributions_of_other_names_are_no_conflict(tmp_path: Path, metadata: str) -> None:
    (tmp_path / metadata).mkdir()
    done = python(tmp_path, "-P", "-m", "odp", "--version", path=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 0, done.stderr


@pytest.mark.processes
@pytest.mark.slow
def test_services_start_in_a_folder_of_such_modules(folder: Path) -> None:
    code = (
        "import pathlib\n"
        "from odp.operations.local.processes import Services\n"
        "with Services(pathlib.Path('state')) as services:\n"
        "    print(sorted(services.children))\n"
    )
    done = python(folder, "-P", "-c", code)
    assert done.returncode == 0, done.stderr
    assert "server" in done.stdout
