"""A round that is open again under another key, after the opening that a device contributed to had no release.

A hand-over of the aggregator's enclave may end an open round. What was sealed to the key of that opening is then void,
and the enclave signs so (``VoidedKey`` of common.proto). Nothing that rests on the device's data was released, so the
device takes the charge back and contributes once more. So it does where the enclave signed a refusal of its bytes: they
never counted under that key.

Without such a signature the earlier contribution may have counted, and the device sends no second one.
"""

from __future__ import annotations

from device_runtime.store.schema import Participation, State
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Work
from odp.crypto import domains
from odp.crypto.signing import SignatureError, verify
from odp.enclave.verifier import VerifiedEnclave
from odp.errors import Refusal
from odp.v1 import common_pb2


def is_answered(before: Participation, work: Work) -> bool:
    """Whether the device has nothing left to do in ``work`` after ``before``, its participation in the same round.

    Where this is False, ``takes_part_again`` decides once the aggregator is verified.
    """
    has_answer = before.state is not State.PREPARED or before.sealed is None
    if before.recipient == work.hpke_key or not before.recipient:
        return has_answer
    if before.state is State.REFUSED:
        return not _may_repeat(work)
    return has_answer and _named_void(before, work) is None


def takes_part_again(store: Store, before: Participation, work: Work, aggregator: VerifiedEnclave) -> bool:
    """Whether the device contributes anew to a round that came back under another key than that of ``before``.

    Stores that ``before`` is void, and costs nothing, where the verified ``aggregator`` signed that.
    """
    if before.state is not State.REFUSED:
        voided = _named_void(before, work)
        if voided is None or not _holds(voided, before, aggregator):
            # What is sealed already may have left, and may have been counted.
            store.give_up(before.task_sha256, before.round)
            return False
        store.settle(before.task_sha256, before.round, State.REFUSED, Refusal.ROUND_CLOSED, void=True)
    return _may_repeat(work)


def _may_repeat(work: Work) -> bool:
    # A report that is private by itself costs what left the device, whether or not it counted.
    return work.model.terms.local is None


def _named_void(before: Participation, work: Work) -> common_pb2.VoidedKey | None:
    voided = () if work.round_key is None else work.round_key.voided
    return next((one for one in voided if one.hpke_key == before.recipient), None)


def _holds(voided: common_pb2.VoidedKey, before: Participation, aggregator: VerifiedEnclave) -> bool:
    stated = domains.voided_key(before.task_sha256, before.round, before.recipient)
    try:
        verify(aggregator.signing_key, voided.signature, domains.VOIDED_KEY, stated)
    except SignatureError:
        return False
    return True
