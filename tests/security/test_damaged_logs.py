"""Logs that are damaged, or that their own operator signed over nonsense: an audit names the record, whatever it is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
from security import hostile_definitions as hostile
from security.test_fuzz import changed
from trust.log.run import Run
from trust.log.world import NOW

from odp.errors import ConfigurationError, OutOfResources
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.log.audit import audit
from odp.trust.log.entries import ReleaseEntry
from odp.trust.log.records import Records
from odp.trust.log.sources import AuditFailure, LogFolder
from odp.v1 import common_pb2

_some = hypothesis.settings(
    max_examples=60, derandomize=True, database=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)  # fmt: skip
_RECORD = re.compile(r"entry \d+( \(.*\))?|checkpoint|file '\w+'|stored hash \d+.*|hash .*|release of round .*")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(EmulatedPlatform.open(tmp_path_factory.mktemp("platform"), clock=lambda: NOW))


@pytest.fixture(scope="module")
def log(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run.write(tmp_path_factory.mktemp("log") / "log", run.entries())


def _failure(folder: Path, run: Run) -> str:
    """The record that the audit names; nothing where the log passes."""
    try:
        audit(LogFolder(folder), run.pins())
    except AuditFailure as failure:
        return failure.record
    return ""


def test_r393_an_audit_on_a_machine_without_memory_is_no_verdict_on_the_log(
    run: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(self: object, number: int, entry: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Records, "_take", short)
        with pytest.raises(OutOfResources, match="this machine could not open the"):
            audit(LogFolder(log), run.pins())
    assert not _failure(log, run)


@pytest.mark.unforeseen
def test_r369_an_error_that_no_check_foresaw_names_the_entry(
    run: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def divides(self: object, number: int, entry: object) -> None:
        _ = 1 / (2 - number)

    monkeypatch.setattr(Records, "_take", divides)
    assert _failure(log, run).startswith("entry 2 (")


@_some
@hypothesis.given(data=st.data())
@pytest.mark.slow
def test_r369_an_entry_of_changed_bytes_in_a_log_that_is_signed_anew_is_named(
    run: Run, tmp_path: Path, data: st.DataObject
) -> None:
    entries = [entry.encode() for entry in run.entries()]
    place = data.draw(st.integers(0, len(entries) - 1))
    entries[place] = changed(data, entries[place]) or b"\0"
    shutil.rmtree(tmp_path / "log", ignore_errors=True)
    record = _failure(run.write(tmp_path / "log", entries), run)
    named = re.match(r"entry (\d+)", record)
    # Entries before it are as they were; that one itself is wrong, or one that refers to it.
    assert (named and int(named[1]) >= place) or record.startswith("release of round") or not record, record


@_some
@hypothesis.given(data=st.data())
@pytest.mark.slow
def test_r369_a_release_with_hostile_fields_that_an_attested_enclave_signed_is_named(
    run: Run, tmp_path: Path, data: st.DataObject
) -> None:
    entries = run.entries()
    place = next(number for number, entry in enumerate(entries) if isinstance(entry, ReleaseEntry))
    found = list(hostile.changes(common_pb2.Release.FromString(entries[place].release)))  # type: ignore[union-attr]
    name, change = found[data.draw(st.integers(0, len(found) - 1))]
    hypothesis.note(name)
    try:
        entries[place] = run.release(0, change=change)
    except (ValueError, TypeError):
        return
    shutil.rmtree(tmp_path / "log", ignore_errors=True)
    record = _failure(run.write(tmp_path / "log", entries), run)
    # The ledger that follows names the release by its hash, so the one or the other is wrong.
    assert not record or re.match(rf"entry ({place}|{place + 1}) ", record), record


@_some
@hypothesis.given(data=st.data())
def test_r369_damage_to_any_file_of_a_log_is_named(run: Run, log: Path, tmp_path: Path, data: st.DataObject) -> None:
    broken = tmp_path / "log"
    shutil.rmtree(broken, ignore_errors=True)
    shutil.copytree(log, broken)
    path = broken / data.draw(st.sampled_from(["entries", "hashes", "checkpoint"]))
    before = path.read_bytes()
    after = data.draw(st.one_of(st.binary(max_size=100), st.just(changed(data, before))))
    path.write_bytes(after)
    record = _failure(broken, run)
    assert _RECORD.fullmatch(record) if after != before else not record, record


@pytest.mark.parametrize("name", ["entries", "hashes", "checkpoint"])
def test_r369_a_file_that_is_missing_is_named(run: Run, log: Path, tmp_path: Path, name: str) -> None:
    broken = Path(shutil.copytree(log, tmp_path / "log"))
    (broken / name).unlink()
    with pytest.raises(ConfigurationError, match=f"no file '{name}'"):
        _failure(broken, run)
