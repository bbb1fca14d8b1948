"""A log in which a population goes from one code to the next, and logs in which its budget would not (R276)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from trust.log.run import IMAGE, LEDGER_ID, POLICY, Run
from trust.log.world import CHARTER, NOW

from odp.crypto import domains
from odp.crypto.signing import SigningKey
from odp.privacy.ledger import Ledger
from odp.signed.charter import charter_sha256
from odp.trust.enclave import chain
from odp.trust.enclave.evidence import read_token
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.log.audit import audit
from odp.trust.log.entries import Entry, EvidenceEntry, HandOverEntry, LedgerEntry, ManifestEntry
from odp.trust.log.sources import AuditFailure, LogFolder
from odp.v1 import hand_over_pb2

NEXT, OTHER = "sha384:" + "f" * 96, "sha384:" + "9" * 96
LATER = SigningKey.generate()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(EmulatedPlatform.open(tmp_path_factory.mktemp("platform"), clock=lambda: NOW))


def _chip(run: Run) -> bytes:
    token = read_token(run.evidence().token.decode())
    return chain.verify(token.chain, roots=[run.platform.root_certificate_pem], now=NOW).chip_id


def _hand_over(
    run: Run, *, key: SigningKey | None = None, ledger: Ledger | None = None, **changes: Any
) -> HandOverEntry:
    handed = ledger or run.ledgers[0]
    values: dict[str, Any] = {
        "predecessor_image": IMAGE,
        "chip_id": _chip(run),
        "successor_image": NEXT,
        "policy_sha256": POLICY.sha256,
        "populations": [
            hand_over_pb2.HandedPopulation(
                population="people", ledger_id=changes.pop("ledger_id", LEDGER_ID),
                charter_sha256=charter_sha256(CHARTER), entries=len(handed.entries), head=handed.head,
            )
        ],
        **changes,
    }  # fmt: skip
    statement = hand_over_pb2.HandOverStatement(**values).SerializeToString(deterministic=True)
    return HandOverEntry(statement, (key or run.enclave).sign(domains.HAND_OVER, statement))


def _entries(run: Run) -> list[Entry]:
    """Round 0 by the old code, round 1 by the next one."""
    old = run.entries()
    first = old[: [place for place, entry in enumerate(old) if isinstance(entry, LedgerEntry)][1] - 1]
    return [
        *first, run.endorsement(image_digest=NEXT)[0], _hand_over(run), run.evidence(image=NEXT, key=LATER),
        run.release(1, key=LATER), run.ledger(1, key=LATER), ManifestEntry.of(run.models[2]),
    ]  # fmt: skip


def _handed_back(run: Run) -> list[Entry]:
    """Round 0 by the old code, nothing by the next one, round 1 by the old code again, in another folder."""
    again = SigningKey.generate()
    entries = _entries(run)
    back = _hand_over(run, key=LATER, predecessor_image=NEXT, successor_image=IMAGE)
    place = max(at for at, entry in enumerate(entries) if isinstance(entry, EvidenceEntry))
    return [
        *entries[: place + 1], back, run.evidence(key=again), run.release(1, key=again), run.ledger(1, key=again),
        ManifestEntry.of(run.models[2]),
    ]  # fmt: skip


def _instead(kind: type, number: int, make: Callable[[Run], Sequence[Entry]]) -> Callable[[Run, list[Entry]], None]:
    def change(run: Run, entries: list[Entry]) -> None:
        place = [at for at, entry in enumerate(entries) if isinstance(entry, kind)][number]
        entries[place : place + 1] = make(run)

    return change


def test_a_population_that_goes_from_code_to_code_passes(run: Run, tmp_path: Path) -> None:
    report = audit(LogFolder(run.write(tmp_path / "log", _entries(run))), run.pins())
    assert (report.counts["hand-over"], report.tasks[0].rounds) == (1, 2)


def test_r280_a_population_that_is_handed_back_passes_and_may_be_handed_over_again(run: Run, tmp_path: Path) -> None:
    entries = _handed_back(run)
    report = audit(LogFolder(run.write(tmp_path / "log", entries)), run.pins())
    assert (report.counts["hand-over"], report.tasks[0].rounds) == (2, 2)
    key = SigningKey.generate()
    further = [run.evidence(key=key), _hand_over(run, key=key, ledger=run.ledgers[1], successor_image=OTHER)]
    report = audit(LogFolder(run.write(tmp_path / "further", [*entries, *further])), run.pins())
    assert report.counts["hand-over"] == 3


LIES: dict[str, tuple[Callable[[Run, list[Entry]], None], str]] = {
    "other code charges without a hand-over": (
        _instead(HandOverEntry, 0, lambda run: []), "was not handed over to the code that signed it"),
    "the old code charges after the hand-over": (
        _instead(LedgerEntry, 1, lambda run: [run.ledger(1)]), "handed population 'people' over with"),
    "a hand-over signed by nobody": (
        _instead(HandOverEntry, 0, lambda run: [_hand_over(run, key=SigningKey.generate())]), "has signed it"),
    "a hand-over of fewer charges": (
        _instead(HandOverEntry, 0, lambda run: [_hand_over(run, ledger=dataclasses.replace(
            run.ledgers[0], entries=run.ledgers[0].entries[:1]))]), "hands over fewer entries"),
    "a hand-over of other charges": (
        _instead(HandOverEntry, 0, lambda run: [_hand_over(run, ledger=run.charge(
            Ledger("people"), 0, contributions=6))]), "are not those that were handed over"),
    "a hand-over of a ledger that started again": (
        _instead(HandOverEntry, 0, lambda run: [_hand_over(run, ledger_id=b"z" * 32)]), "started again"),
    "a successor whose ledger started again": (
        _instead(EvidenceEntry, 1, lambda run: [run.evidence(image=NEXT, key=LATER, ledger_id=b"z" * 32)]),
        "started again"),
    "a hand-over to two": (
        _instead(HandOverEntry, 0, lambda run: [_hand_over(run), _hand_over(run, successor_image=OTHER)]),
        "is not owned by the code that hands it over"),
    "a hand-over of another's code": (
        _instead(HandOverEntry, 0, lambda run: [_hand_over(run, predecessor_image=NEXT)]), "another code or chip"),
    "a hand-over under another policy": (
        _instead(HandOverEntry, 0, lambda run: [_hand_over(run, policy_sha256=bytes(32))]), "another policy"),
}  # fmt: skip


def test_r280_what_was_handed_back_is_no_longer_the_next_codes_to_charge_or_to_hand_over(
    run: Run, tmp_path: Path
) -> None:
    entries = _handed_back(run)
    ledger = max(at for at, entry in enumerate(entries) if isinstance(entry, LedgerEntry))
    charged = [*entries[: ledger - 1], run.release(1, key=LATER), run.ledger(1, key=LATER)]
    with pytest.raises(AuditFailure, match="handed population 'people' over with"):
        audit(LogFolder(run.write(tmp_path / "charged", charged)), run.pins())
    twice = [*entries, _hand_over(run, key=LATER, predecessor_image=NEXT, successor_image=OTHER, ledger=run.ledgers[1])]
    with pytest.raises(AuditFailure, match="is not owned by the code that hands it over"):
        audit(LogFolder(run.write(tmp_path / "twice", twice)), run.pins())


@pytest.mark.parametrize("lie", LIES)
def test_every_lie_about_a_hand_over_is_named(run: Run, tmp_path: Path, lie: str) -> None:
    change, reason = LIES[lie]
    entries = _entries(run)
    change(run, entries)
    with pytest.raises(AuditFailure, match=reason):
        audit(LogFolder(run.write(tmp_path / "log", entries)), run.pins())
