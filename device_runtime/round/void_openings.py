"""Contributions to openings of rounds that are void, and rounds that are open again under another key.

A hand-over of the aggregator's enclave may end an open round. What was sealed to the key of that opening is then void,
and the enclave signs so (``VoidedKey`` of common.proto). Nothing that rests on the device's data was released, so the
device takes the charge back. It does so once it hears of it, from the key of this round or of any other of its
population, also long after others filled the round under another key. Where the round itself is open again, the device
contributes once more. So it does where the enclave signed a refusal of its bytes: they never counted under that key.
A report that is private by itself is sent once more as it is: a second randomisation would cost a second charge.

Without such a signature the contribution may have counted: it stays charged, and no second one follows. A device has
one line per round, with the key that its newest contribution was sealed to. What it sent to another key than the void
one is in that line, and stays charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from device_runtime.store.schema import Participation, State
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Work
from odp.crypto.refusals import void_holds
from odp.errors import Refusal
from odp.trust.enclave.verifier import VerifiedEnclave
from odp.v1 import common_pb2


class Line(NamedTuple):
    """A contribution that the device is charged for; ``recipient`` is the key that it was sealed to."""

    task_sha256: bytes
    round: int
    recipient: bytes


def is_answered(before: Participation, work: Work) -> bool:
    """Whether the device has nothing left to do in ``work`` after ``before``, its participation in the same round.

    Where this is False, ``takes_part_again`` decides once the aggregator is verified.
    """
    has_answer = before.state is not State.PREPARED or before.sealed is None
    if before.recipient == work.hpke_key or not before.recipient:
        return has_answer
    if before.state is State.REFUSED:
        return not _may_repeat(before, work)
    return has_answer and all(opening.hpke_key != before.recipient for opening in _voided(work))


def named_void(store: Store, work: Work) -> list[Line]:
    """The device's charged contributions, of all tasks, that ``work`` names as void; no signature is verified yet."""
    keys = {opening.hpke_key for opening in _voided(work)}
    if not keys:
        return []
    # A contribution to a session has no key of its own: nothing calls it back.
    rows = store.all(
        "SELECT task_sha256, round, recipient FROM participations WHERE state <> 'REFUSED' AND recipient <> x''"
    )
    return [line for line in map(Line._make, rows) if line.recipient in keys]


def take_back(store: Store, lines: Sequence[Line], work: Work, aggregator: VerifiedEnclave) -> None:
    """Stores of each of ``lines`` that it costs nothing, where the verified ``aggregator`` signed that it is void."""
    for line in lines:
        if any(
            void_holds(
                voided, signing_key=aggregator.signing_key, task_sha256=line.task_sha256, round=line.round,
                hpke_key=line.recipient,
            )
            for voided in _voided(work)
        ):  # fmt: skip
            store.settle(line.task_sha256, line.round, State.REFUSED, Refusal.ROUND_CLOSED, void=True)


def takes_part_again(store: Store, before: Participation, work: Work) -> bool:
    """Whether the device contributes anew to a round that came back under another key than that of ``before``."""
    if before.state is not State.REFUSED:
        # What is sealed already may have left, and may have been counted.
        store.give_up(before.task_sha256, before.round)
        return False
    return _may_repeat(before, work)


def _may_repeat(before: Participation, work: Work) -> bool:
    if work.terms.local is None:
        return True
    # What left the device costs, whether or not it counted, so only this report may leave again. It says nothing of
    # another model than its own.
    return before.report is not None and before.model_sha256 == work.model.model_sha256


def _voided(work: Work) -> Sequence[common_pb2.VoidedKey]:
    return () if work.round_key is None else work.round_key.voided
