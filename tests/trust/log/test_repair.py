"""A log whose files were lost is restored as it was signed, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from trust.log.world import NOW, filler

from odp.crypto.note import NoteKey
from odp.errors import ConfigurationError, StateError
from odp.trust.log import merkle
from odp.trust.log.checkpoint import Checkpoint
from odp.trust.log.log_files import CHECKPOINT, ENTRIES, HASHES, LogFiles
from odp.trust.log.repair import repair

KEY = NoteKey.generate("example.com/log")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log of 13 entries, with a copy of 5 in ``copy`` and of all in ``whole``; a witness saw 9."""
    made = tmp_path / "log"
    with LogFiles.open(made, KEY, now=NOW) as log:
        log.append(filler(5), now=NOW)
        shutil.copytree(made, tmp_path / "copy")
        log.append(filler(4, first=5), now=NOW)
        (tmp_path / "witness").write_bytes(log.checkpoint.body)
        log.append(filler(4, first=9), now=NOW)
    shutil.copytree(made, tmp_path / "whole")
    return made


def opened(folder: Path) -> tuple[int, bytes]:
    with LogFiles.open(folder, KEY, now=NOW) as log:
        return log.size, log.note


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("left", [(ENTRIES,), (HASHES,), (ENTRIES, HASHES)])
def test_a_log_without_its_checkpoint_is_refused_and_not_started_anew(folder: Path, left: tuple[str, ...]) -> None:
    for name in {ENTRIES, HASHES, CHECKPOINT} - set(left):
        (folder / name).unlink()
    before = {name: (folder / name).read_bytes() for name in left}
    with pytest.raises(StateError, match="'checkpoint' is gone; `odp audit repair` restores it"):
        LogFiles.open(folder, KEY, now=NOW)
    assert {name: (folder / name).read_bytes() for name in left} == before


def test_a_lost_checkpoint_is_restored_from_what_a_witness_saw_without_dropping_later_entries(
    folder: Path, tmp_path: Path
) -> None:
    (folder / CHECKPOINT).unlink()
    with pytest.raises(ConfigurationError, match="the size of the log"):
        repair(folder, KEY, now=NOW)
    done = repair(folder, KEY, checkpoints=[tmp_path / "witness"], now=NOW + 5)
    assert (done.size, done.own, done.signed_anew) == (13, 13, True)
    size, note = opened(folder)
    assert size == 13
    tree = Checkpoint.from_body(note.split(b"\n\n")[0] + b"\n")
    assert tree.root == merkle.root_of(map(merkle.leaf_hash, filler(13)))


def test_a_copy_brings_back_the_note_that_was_signed(folder: Path, tmp_path: Path) -> None:
    note = opened(folder)[1]
    for name in (CHECKPOINT, HASHES, ENTRIES):
        (folder / name).unlink()
        done = repair(folder, KEY, copies=[tmp_path / "whole"], now=NOW + 5)
        assert not done.signed_anew
        assert opened(folder) == (13, note)
    assert contents(folder) == contents(tmp_path / "whole")


def test_a_lost_tree_of_hashes_is_made_again_from_the_entries_alone(folder: Path) -> None:
    (folder / HASHES).write_bytes(b"")
    with pytest.raises(StateError, match="odp audit repair"):
        LogFiles.open(folder, KEY, now=NOW)
    assert not repair(folder, KEY, now=NOW).signed_anew
    assert opened(folder)[0] == 13


@pytest.mark.parametrize("loss", ["entries", "entries and checkpoint"])
def test_a_log_is_never_made_shorter_than_what_is_known_to_be_signed(folder: Path, tmp_path: Path, loss: str) -> None:
    """An older copy alone would be a second tree of one size, a few entries later."""
    data = (folder / ENTRIES).read_bytes()
    (folder / ENTRIES).write_bytes(data[: len(data) // 3])
    checkpoints = []
    if loss != "entries":
        (folder / CHECKPOINT).unlink()
        checkpoints = [tmp_path / "witness"]
    before = contents(folder)
    with pytest.raises(StateError, match=r"cannot be restored.*give --from a newer copy, nothing was changed"):
        repair(folder, KEY, copies=[tmp_path / "copy"], checkpoints=checkpoints, now=NOW)
    assert contents(folder) == before
    repair(folder, KEY, copies=[tmp_path / "copy", tmp_path / "whole"], checkpoints=checkpoints, now=NOW)
    assert opened(folder)[0] == 13


def test_half_a_batch_behind_the_known_entries_is_not_signed(folder: Path, tmp_path: Path) -> None:
    """The power failed while a batch was written: an entry has its length, and zeros in place of its bytes."""
    with (folder / ENTRIES).open("ab") as file:
        file.write((40).to_bytes(4, "big") + bytes(40))
    (folder / CHECKPOINT).unlink()
    repair(folder, KEY, checkpoints=[tmp_path / "witness"], now=NOW)
    assert opened(folder)[0] == 13


def _of_another_log(path: Path) -> None:
    with LogFiles.open(path.parent / "other", NoteKey.generate("example.com/other"), now=NOW) as log:
        path.write_bytes(log.note)


def _under_another_key(path: Path) -> None:
    with LogFiles.open(path.parent / "forged", NoteKey.generate(KEY.name), now=NOW) as log:
        path.write_bytes(log.note)


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (_of_another_log, "is of the log 'example.com/other'"),
        (_under_another_key, "not signed by the key of this log"),
        (lambda path: path.write_bytes(b"nothing of the kind"), "not a checkpoint of a log"),
        (lambda path: path.unlink(missing_ok=True), "cannot read"),
    ],
    ids=["another log", "another key", "nonsense", "missing"],
)
def test_a_checkpoint_of_another_log_or_key_restores_nothing(
    folder: Path, tmp_path: Path, write: Callable[[Path], None], told: str
) -> None:
    (folder / CHECKPOINT).unlink()
    before = contents(folder)
    write(tmp_path / "stated")
    with pytest.raises(ConfigurationError, match=told):
        repair(folder, KEY, checkpoints=[tmp_path / "stated"], now=NOW)
    assert contents(folder) == before


def test_a_log_that_is_in_use_is_not_repaired(folder: Path, tmp_path: Path) -> None:
    with LogFiles.open(folder, KEY, now=NOW), pytest.raises(StateError, match="stop its server first"):
        repair(folder, KEY, copies=[tmp_path / "whole"], now=NOW)
