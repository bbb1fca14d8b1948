"""A place that cannot be written is told in one line before a command works, and nothing of the trial is left."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import Printed

from odp.cli.main import main
from odp.cli.outputs import output_file, output_folder, writing, writing_file
from odp.errors import ConfigurationError

Odp = Callable[..., Printed]
WORKS = "odp.datasets.load", "odp.datasets.registry.load"


@pytest.fixture
def occupied(tmp_path: Path) -> Path:
    """A name below a file: nobody can write there, whatever their rights."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "below"


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "--output"),
        ("simulate", "--preset", "auto", "--output"),
        ("simulate", "--preset", "auto", "--checkpoint"),
        ("demo", "--output"),
        ("tune", "--output"),
        ("report", ".", "--output"),
        ("task", "results", "0", "--picture"),
        ("privacy", "report", "0", "--html"),
        ("device", "export"),
        ("device", "roster"),
        ("data", "features", "synthetic"),
        ("enclave", "reference-values", "--output"),
        ("enclave", "endorse", "--output"),
    ],
    ids=" ".join,
)
def test_a_command_tries_its_output_before_it_works(
    odp: Odp, occupied: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for work in WORKS:
        monkeypatch.setattr(work, lambda *_: pytest.fail("it worked first"))
    with pytest.raises(ConfigurationError, match=r"cannot write to .*file") as refused:
        odp(*command, occupied)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("check", [output_folder, output_file])
def test_a_trial_leaves_nothing_behind(tmp_path: Path, check: Callable[[Path | None], Path | None]) -> None:
    wanted = tmp_path / "new" / "deeper" / "name"
    assert check(wanted) == wanted
    assert check(None) is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_keeps_its_content_and_a_folder_is_no_file(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("kept")
    assert output_file(there) == there
    assert there.read_text() == "kept"
    with pytest.raises(ConfigurationError, match="it is a folder"):
        output_file(tmp_path)


def test_what_fails_while_it_is_written_is_told_in_one_line(tmp_path: Path) -> None:
    told = r"cannot write to .*: No space left on device; give another place"
    with pytest.raises(ConfigurationError, match=told), writing(tmp_path):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("port", [-1, 65536, 80_000])
def test_a_port_that_is_none_is_told_in_one_line(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["odp", "device", "view", "--port", str(port)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'--port'" in line


def test_a_pipe_or_a_device_is_no_output_and_is_not_touched(tmp_path: Path) -> None:
    """A file is put in the place of an output, as a whole: in that of /dev/null, too."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for special in (pipe, Path("/dev/null")):
        with pytest.raises(ConfigurationError, match="it is no ordinary file"):
            output_file(special)
    assert pipe.is_fifo()


def test_the_folder_that_a_trial_took_away_is_there_when_the_output_is_written(tmp_path: Path) -> None:
    wanted = tmp_path / "new" / "deeper" / "name"
    output_file(wanted)
    with writing_file(wanted):
        wanted.write_text("all of it")
    with pytest.raises(ConfigurationError, match="cannot write to"), writing_file(wanted / "below"):
        pytest.fail("its folder is a file")
