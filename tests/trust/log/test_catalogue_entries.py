"""Catalogues in the log: signed by owners, one chain, and named by tasks as they are; every lie is properly signed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from trust.log.run import Run
from trust.log.world import CHARTER, DEVELOPER, NOW, a_task

from odp.crypto.signing import SigningKey
from odp.protocol.catalogues.catalogue import Catalogue
from odp.protocol.catalogues.step import SignedStep
from odp.signed.task import sign_task
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.log.audit import AuditReport, audit
from odp.trust.log.entries import CatalogueEntry, CharterEntry, Entry, PolicyEntry, TaskEntry
from odp.trust.log.sources import AuditFailure, LogFolder
from odp.v1 import common_pb2

FIRST = Catalogue.make("people", [f"film {number}" for number in range(12)])
SECOND = FIRST.change(add=["new"], retire=["film 3"])
THIRD = SECOND.change(withdraw=[1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(EmulatedPlatform.open(tmp_path_factory.mktemp("platform"), clock=lambda: NOW))


def entry(step: bytes, key: SigningKey = DEVELOPER) -> CatalogueEntry:
    return CatalogueEntry.of(SignedStep.by(key, step))


def task(version: Catalogue, *, name: str = "films", **changes: object) -> TaskEntry:
    definition = common_pb2.TaskDefinition.FromString(a_task(DEVELOPER, name=name).definition)
    named = version.to_proto()
    for field, value in changes.items():
        setattr(named, field, value)
    definition.model.catalogue.CopyFrom(named)
    return TaskEntry.of(sign_task(definition, DEVELOPER))


def audited(run: Run, folder: Path, entries: Sequence[Entry]) -> AuditReport:
    owned = [PolicyEntry(run.entries()[0].policy), run.endorsement()[0], CharterEntry.of(CHARTER)]  # type: ignore[union-attr]
    return audit(LogFolder(run.write(folder / "log", [*owned, *entries])), run.pins())


def test_a_log_with_catalogues_and_the_tasks_that_name_them_passes(run: Run, tmp_path: Path) -> None:
    steps = [entry(step) for step in THIRD.steps]
    entries = [steps[0], task(FIRST), steps[1], task(SECOND, name="later"), task(FIRST, name="older"), steps[2]]
    report = audited(run, tmp_path, entries)
    assert report.counts["catalogue"] == 3
    assert [one.name for one in report.tasks] == ["films", "later", "older"]


def _eleven() -> Catalogue:
    return Catalogue.make("people", FIRST.keys[:11])


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (lambda: [entry(FIRST.steps[0], SigningKey.generate())], "belongs to other keys"),
        (lambda: [entry(Catalogue.make("songs", ["a"]).steps[0])], "'songs' has no charter"),
        (lambda: [entry(SECOND.steps[1])], "version 1 of the catalogue"),
        (lambda: [entry(FIRST.steps[0]), entry(THIRD.steps[2])], "got version 3"),
        (lambda: [entry(FIRST.steps[0]), entry(_eleven().change(add=["x"]).steps[1])], "follows another version"),
        (lambda: [*map(entry, SECOND.steps), entry(FIRST.change(add=["fork"]).steps[1])], "got version 2"),
        (lambda: [dataclasses.replace(entry(FIRST.steps[0]), signature=bytes(64))], "signature"),
        (lambda: [dataclasses.replace(entry(FIRST.steps[0]), step=SECOND.steps[1])], "signature"),
        (lambda: [task(FIRST)], "has no catalogue"),
        (lambda: [entry(FIRST.steps[0]), task(SECOND)], "version 1 of the catalogue as its newest"),
        (lambda: [entry(FIRST.steps[0]), task(FIRST, sha256=bytes(32))], "another catalogue version 1"),
        (lambda: [entry(_eleven().steps[0]), task(_eleven())], "Expected items=12 .* to be the 11"),
        (lambda: [*map(entry, THIRD.steps), task(FIRST)], "version 1 .* was withdrawn"),
    ],
    ids=[
        "a stranger", "no population", "no beginning", "a gap", "another predecessor", "a fork", "no signature",
        "another step", "no catalogue", "an unknown version", "another hash", "another size", "withdrawn",
    ],
)  # fmt: skip
def test_a_catalogue_that_lies_fails_the_audit(run: Run, tmp_path: Path, entries: object, words: str) -> None:
    with pytest.raises(AuditFailure, match=words) as caught:
        audited(run, tmp_path, entries())  # type: ignore[operator]
    assert caught.value.record.startswith("entry ")
