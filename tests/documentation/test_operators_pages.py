"""The pages of operators run to the letter, against real programs, from an empty folder.

Not run, and therefore only checked for commands and options that exist: steps of ``deployment.md`` that need root,
systemd, a container runtime or a cluster (``test_deployed_programs.py`` runs the command lines in ``deploy/``);
``replicas.md`` and ``trees.md``, which name several machines (``e2e/test_replicas.py`` and ``e2e/test_tree.py`` run
such services); ``enrolment.md``, ``populations.md`` and ``control-room.md``, whose commands have placeholders.
"""

from __future__ import annotations

import builtins
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from documentation.code_blocks import ROOT, blocks_of
from documentation.running import run_page

from odp._system.files.state_folder import StateFolder

HOW_TO = ROOT / "docs" / "how-to"
TASK = """
name = "films"
population = "films"
[model]
kind = "matrix_factorization"
items = 20
rank = 2
[data]
low = 1.0
high = 5.0
[privacy]
epsilon = 8.0
delta = 1e-6
[training]
kind = "dpam"
steps = 1
[cohort]
minimum = 100
goal = 120
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def next_version(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone of this tree, which the pages of upgrades call by the name CLONE."""
    clone = tmp_path_factory.mktemp("clone")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, clone / name)
    monkeypatch.setattr(builtins, "CLONE", str(clone), raising=False)


def test_r404_every_page_for_operators_is_run_whole() -> None:
    """A page of how-to that begins "For operators" says that a test runs all of it, and one of this file does."""
    source = Path(__file__).read_text(encoding="utf-8")
    texts = {page: " ".join(page.read_text(encoding="utf-8").split()) for page in HOW_TO.glob("*.md")}
    pages = {page for page, text in texts.items() if re.match(r"# [^#]{1,60} For operators", text)}
    assert len(pages) >= 6
    for page in pages:
        assert "A test runs every command of it." in texts[page], page.name
        assert re.search(rf'run_page\([^)]*HOW_TO / "{page.name}"', source), page.name
        assert all(block.runs_here for block in blocks_of(page)), page.name


def test_r404_the_page_of_operations_runs_on_stopped_programs(folder: Path) -> None:
    """``operations.md``: what is left of it beside the pages of upgrades."""
    for name, role in (("odp-state", "services"), ("odp-state/aggregator", "aggregator"), ("aggregator", "aggregator")):
        StateFolder.open(folder / name, role).close()
    run_page(ROOT / "docs" / "operations.md")
    assert (folder / "odp-state" / "aggregator" / "format").is_file()


@pytest.mark.processes
@pytest.mark.proof
def test_r385_the_back_up_page_runs_to_the_letter(folder: Path) -> None:
    """``back-up.md``: back up, restore, lose a chip, move, retire."""
    (folder / "films.toml").write_text(TASK, encoding="utf-8")
    run_page(HOW_TO / "back-up.md")
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        "odp-state.replaced-0", "new-state", "lost-aggregator", "log-of-films", "odp-devices",
    }  # fmt: skip


@pytest.mark.processes
@pytest.mark.proof
def test_r404_the_pages_of_deployments_and_of_certificates_run_to_the_letter(folder: Path) -> None:
    """``deploy.md`` from an empty folder, then ``certificates.md`` while what it started runs."""
    run_page(HOW_TO / "deploy.md", HOW_TO / "certificates.md", shift_ports=True)
    assert not list((folder / "authority").glob("ca-old.*"))


@pytest.mark.processes
@pytest.mark.proof
def test_r404_the_page_of_lost_disks_runs_to_the_letter(folder: Path) -> None:
    """``lose-a-disk.md``: the folder of each program, the log, and ledgers that are gone; ``operating.md`` after it."""
    (folder / "films.toml").write_text(TASK, encoding="utf-8")
    run_page(HOW_TO / "lose-a-disk.md", ROOT / "docs" / "operating.md")


@pytest.mark.processes
@pytest.mark.proof
@pytest.mark.usefixtures("next_version")
def test_r404_the_upgrade_page_runs_to_the_letter(folder: Path) -> None:
    """``upgrade.md``; its second step downloads what ODP depends on, as an operator's does."""
    (folder / "films.toml").write_text(TASK, encoding="utf-8")
    run_page(HOW_TO / "upgrade.md")
    assert (folder / "odp-state" / "aggregator.handed-over-0").is_dir()


@pytest.mark.processes
@pytest.mark.proof
@pytest.mark.usefixtures("next_version")
def test_r404_the_upgrade_of_a_deployment_runs_to_the_letter(folder: Path) -> None:
    """``upgrade-programs.md`` on what ``deploy.md`` started."""
    run_page(HOW_TO / "deploy.md", HOW_TO / "upgrade-programs.md", shift_ports=True)
