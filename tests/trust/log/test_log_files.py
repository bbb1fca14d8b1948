"""The log on disk: whatever it is killed at, it reopens to the tree that was signed last, and goes on from there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trust.log.world import NOW, filler

from odp.crypto.note import Kind, Note, NoteKey
from odp.errors import ConfigurationError, StateError
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.log import log_files, merkle
from odp.trust.log.checkpoint import Checkpoint, verify_checkpoint
from odp.trust.log.log_files import CHECKPOINT, ENTRIES, HASHES, LogFiles

KEY = NoteKey.generate("example.com/log")
POLICY = LogPolicy(log_keys=(KEY.public(Kind.NOTE).text,), endorser_keys=())


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogFiles]:
    with LogFiles.open(tmp_path / "log", KEY, now=NOW) as opened:
        yield opened


def test_an_appended_entry_is_signed_stored_and_provable(log: LogFiles) -> None:
    entries = filler(9)
    assert log.append(entries[:4], now=NOW) == [0, 1, 2, 3]
    assert log.append(entries[4:], now=NOW + 5) == [4, 5, 6, 7, 8]
    verified = verify_checkpoint(log.note, POLICY)
    assert (verified.checkpoint.size, verified.time) == (9, NOW + 5)
    assert verified.checkpoint.root == merkle.root_of(map(merkle.leaf_hash, entries))
    for index, entry in enumerate(entries):
        assert log.entry(index) == entry
        assert log.head(index, 5) == entry[:5]
        assert log.length(index) == len(entry)
        leaf = merkle.leaf_hash(entry)
        assert log.index_of(leaf) == index
        merkle.verify_inclusion(
            leaf=leaf, index=index, size=9, proof=log.inclusion_proof(index, 9), root=verified.checkpoint.root
        )
    first = merkle.root_of(map(merkle.leaf_hash, entries[:4]))
    merkle.verify_consistency(
        first=4, second=9, first_root=first, second_root=log.checkpoint.root, proof=log.consistency_proof(4, 9)
    )
    assert log.hashes(0, 7, 100) == [merkle.leaf_hash(entry) for entry in entries[7:]]
    assert log.hashes(3, 0, 100) == [merkle.root_of(map(merkle.leaf_hash, entries[:8]))]


def test_the_same_entry_again_is_the_same_entry(log: LogFiles) -> None:
    entries = filler(3)
    log.append(entries, now=NOW)
    note = log.note
    assert log.append([entries[2], entries[0], entries[2]], now=NOW + 50) == [2, 0, 2]
    assert log.note == note, "nothing was signed for nothing"
    assert log.append([*filler(2, first=10), *filler(1, first=10), entries[1]], now=NOW) == [3, 4, 3, 1]
    assert log.size == 5


def test_a_reopened_log_goes_on_where_it_was(tmp_path: Path) -> None:
    with LogFiles.open(tmp_path, KEY, now=NOW) as log:
        log.append(filler(5), now=NOW)
        note = log.note
    with LogFiles.open(tmp_path, KEY, now=NOW + 100) as log:
        assert log.note == note
        assert log.append(filler(6), now=NOW) == [0, 1, 2, 3, 4, 5]
        assert log.checkpoint.root == merkle.root_of(map(merkle.leaf_hash, filler(6)))


def test_a_new_time_and_cosignatures_change_no_tree(log: LogFiles) -> None:
    log.append(filler(2), now=NOW)
    body, witness = Note.parse(log.note).body, NoteKey.generate("example.com/w")
    assert log.add_cosignatures(body, [witness.cosign(body, now=NOW)])
    log.sign_again(now=NOW + 60)
    note = Note.parse(log.note)
    assert note.body == body
    assert len(note.lines) == 3
    assert verify_checkpoint(log.note, POLICY).time == NOW + 60
    log.append(filler(1, first=9), now=NOW)
    assert not log.add_cosignatures(body, [witness.cosign(body, now=NOW)]), "of an older tree"


def test_every_death_in_a_batch_leaves_the_tree_before_or_after_it(tmp_path: Path) -> None:
    """As a kill between any two bytes would: each file is cut at sampled lengths, in the order of writing."""
    before, after = tmp_path / "before", tmp_path / "after"
    with LogFiles.open(before, KEY, now=NOW) as log:
        log.append(filler(5), now=NOW)
    shutil.copytree(before, after)
    batch = filler(4, first=5)
    with LogFiles.open(after, KEY, now=NOW) as log:
        log.append(batch, now=NOW)
        whole = log.checkpoint
    old = {name: (before / name).read_bytes() for name in (ENTRIES, HASHES, CHECKPOINT)}
    new = {name: (after / name).read_bytes() for name in (ENTRIES, HASHES, CHECKPOINT)}
    lengths = [*range(len(old[ENTRIES]), len(new[ENTRIES]), 5), len(new[ENTRIES])]
    states = [{**old, ENTRIES: new[ENTRIES][:length]} for length in lengths]
    lengths = [*range(len(old[HASHES]), len(new[HASHES]), 15), len(new[HASHES])]
    states += [{**old, ENTRIES: new[ENTRIES], HASHES: new[HASHES][:length]} for length in lengths]
    states += [{**new, CHECKPOINT: old[CHECKPOINT], ".checkpoint.1-1.tmp": new[CHECKPOINT][:n]} for n in (0, 9, 200)]
    states += [new]
    for number, state in enumerate(states):
        folder = tmp_path / "crashed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, data in state.items():
            (folder / name).write_bytes(data)
        with LogFiles.open(folder, KEY, now=NOW) as log:
            done = number == len(states) - 1
            assert log.size == (9 if done else 5)
            assert log.note == (new if done else old)[CHECKPOINT]
            assert log.append(batch, now=NOW) == [5, 6, 7, 8]
            assert log.checkpoint == whole, "the same tree as if nothing had happened"
        assert sorted(path.name for path in folder.iterdir()) == sorted([CHECKPOINT, ENTRIES, HASHES])


@pytest.mark.parametrize("call", range(1, 10))
@pytest.mark.slow
def test_a_process_killed_at_any_system_call_of_a_batch_never_signs_two_trees_of_one_size(
    tmp_path: Path, call: int
) -> None:
    """Really killed, at its n-th write, sync or rename after the start; what it printed is what it showed to others."""
    key = tmp_path / "key"
    key.write_text(KEY.to_text())
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from odp.trust.log.log_files import LogFiles\n"
        "from odp.crypto.note import NoteKey\n"
        "from trust.log.world import NOW, filler\n"
        "log = LogFiles.open(Path(sys.argv[1]), NoteKey.from_text(Path(sys.argv[2]).read_text()), now=NOW)\n"
        "left = [int(sys.argv[3])]\n"
        "def armed(real):\n"
        "    def wrapper(*arguments, **keywords):\n"
        "        left[0] -= 1\n"
        "        if left[0] == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return real(*arguments, **keywords)\n"
        "    return wrapper\n"
        "if left[0]:\n"
        "    for name in ('pwrite', 'fsync', 'open', 'replace', 'rename'):\n"
        "        setattr(os, name, armed(getattr(os, name)))\n"
        "    Path.replace = armed(Path.replace)\n"
        "first = int(sys.argv[4])\n"
        "log.append(filler(3, first=first), now=NOW)\n"
        "sys.stdout.write(log.note.decode()); sys.stdout.flush()\n"
    )

    def run(kill_at: int, first: int) -> tuple[int, bytes]:
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "log"), str(key), str(kill_at), str(first)],
            capture_output=True, timeout=60, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
        return done.returncode, done.stdout

    shown: dict[int, bytes] = {}
    codes = []
    # After each death another batch: had the first one been signed, its size would be signed twice.
    for attempt, kill_at in enumerate((call, 0)):
        code, note = run(kill_at, 10 * attempt)
        codes.append(code)
        if note:
            tree = Checkpoint.from_body(Note.parse(note).body)
            assert shown.setdefault(tree.size, tree.root) == tree.root
    assert codes[1] == 0
    if call <= 6:
        assert codes[0] == -signal.SIGKILL, "the process died where it was told to"
    with LogFiles.open(tmp_path / "log", KEY, now=NOW) as log:
        for size, root in shown.items():
            assert merkle.root(size, log.node) == root, "what was shown is still the beginning of the log"


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_full_disk_leaves_the_old_tree_or_the_whole_new_one(
    log: LogFiles, monkeypatch: pytest.MonkeyPatch, stored: bool, reopened: bool
) -> None:
    """Where the checkpoint was stored and the error came behind it, the batch is in the log."""
    log.append(filler(3), now=NOW)
    note, write = log.note, log_files.write_atomically

    def full(path: Path, data: bytes) -> None:
        if stored:
            write(path, data)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_files, "write_atomically", full)
    with pytest.raises(StateError, match="disk full"):
        log.append(filler(2, first=5), now=NOW)
    assert log.note == note
    assert log.entry(2) == filler(3)[2]
    with pytest.raises(StateError, match="disk full"):
        log.append(filler(2, first=8), now=NOW)
    monkeypatch.undo()
    if reopened:
        log.close()
        log = LogFiles.open(log.folder, KEY, now=NOW)
    assert log.append(filler(1, first=8), now=NOW) == [5 if stored else 3]
    assert log.append(filler(2, first=5), now=NOW) == ([3, 4] if stored else [4, 5])
    entries = [log.entry(number) for number in range(log.size)]
    assert log.checkpoint.root == merkle.root_of(map(merkle.leaf_hash, entries))
    log.close()


def test_a_closed_log_touches_no_other_file(log: LogFiles, tmp_path: Path) -> None:
    log.append(filler(1), now=NOW)
    log.close()
    with (tmp_path / "other").open("w+b") as one, (tmp_path / "another").open("w+b") as two:
        for ask in (lambda: log.append(filler(1, first=5), now=NOW), lambda: log.entry(0), lambda: log.head(0, 1)):
            with pytest.raises(StateError):
                ask()
        assert (one.read(), two.read()) == (b"", b"")
    log.close()


def test_two_programs_do_not_share_a_log(log: LogFiles) -> None:
    with pytest.raises(StateError, match="in use"):
        LogFiles.open(log.folder, KEY, now=NOW)


def test_the_key_of_another_log_does_not_open_it(log: LogFiles) -> None:
    log.append(filler(1), now=NOW)
    log.close()
    for key in (NoteKey.generate("example.com/log"), NoteKey.generate("example.com/other")):
        with pytest.raises(StateError, match="not signed by the log's own key"):
            LogFiles.open(log.folder, key, now=NOW)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (ENTRIES, lambda data: data[:-1], "damaged"),
        (ENTRIES, lambda data: b"\xff" + data[1:], "damaged"),
        (ENTRIES, lambda data: b"", "damaged"),
        (HASHES, lambda data: data[:-1], "fewer"),
        (HASHES, lambda data: bytes([data[0] ^ 1]) + data[1:], "damaged|root"),
        (CHECKPOINT, lambda data: data.replace(b"\n5\n", b"\n4\n"), "own key"),
        (CHECKPOINT, lambda data: b"junk", "damaged"),
    ],
)
def test_a_damaged_log_does_not_open_or_does_not_show_what_is_damaged(
    tmp_path: Path, name: str, change: Any, message: str
) -> None:
    with LogFiles.open(tmp_path, KEY, now=NOW) as log:
        log.append(filler(5), now=NOW)
    path = tmp_path / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(StateError, match=message), LogFiles.open(tmp_path, KEY, now=NOW) as log:
        log.entry(0)


def test_what_is_not_in_the_log_is_not_shown(log: LogFiles) -> None:
    with pytest.raises(ConfigurationError, match="empty"):
        log.entry(0)
    log.append(filler(3), now=NOW)
    for ask in (
        lambda: log.entry(3), lambda: log.entry(-1), lambda: log.inclusion_proof(0, 4),
        lambda: log.inclusion_proof(3, 3), lambda: log.consistency_proof(2, 4),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError):
            ask()
    assert log.hashes(0, 3, 10) == []
    assert log.hashes(8, 0, 10) == []


def test_an_empty_or_too_long_entry_is_refused_and_nothing_is_written(log: LogFiles) -> None:
    for wrong in ([b""], [b"x" * (log_files.LARGEST_ENTRY + 1)]):
        with pytest.raises(ConfigurationError):
            log.append([*filler(1), *wrong], now=NOW)
    assert log.size == 0
    assert (log.folder / ENTRIES).read_bytes() == b""
