"""A host that says of a counted contribution that it was refused, so that a person's ledger becomes too small.

What the enclave signs has to be true whatever the host does next: restart it, bring back old state, run two copies, or
open the round anew. So each test looks for bytes that the enclave disowns, and that count all the same.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import pytest

from odp.crypto import SigningKey, domains
from odp.crypto.refusals import refusal_holds
from odp.errors import Refusal
from odp.v1 import aggregator_pb2
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.interface import Refused
from trusted_aggregator.enclave import refusing

Make = Callable[..., Any]


def ask(world: Any, sealed: bytes, round: int = 0, *, masked_sha256: bytes = b"") -> Refused | None:
    """What the enclave answers to a contribution."""
    request = aggregator_pb2.SubmitRequest(
        task_sha256=world.task_sha256, round=round, sealed_contribution=sealed, masked_sha256=masked_sha256
    )
    (answer,) = world.core.submit_batch([wire.sealed_of(request)])
    return answer


def believed(world: Any, answer: Refused | None, sealed: bytes, key: bytes, round: int = 0) -> bool:
    """Whether a device that sealed these bytes to ``key`` leaves them out of its ledger."""
    assert answer is not None
    return refusal_holds(
        answer.signature, answer.refusal, signing_key=world.identity.signing.public, task_sha256=world.task_sha256,
        round=round, hpke_key=key, sealed=sealed, masked=b"",
    )  # fmt: skip


def test_r177_what_the_round_never_takes_is_refused_under_a_signature(small: Any) -> None:
    key = small.round_key()
    bad = {
        Refusal.MALFORMED: bytes(len(small.sealed(1))),
        Refusal.WRONG_TASK: small.sealed(1, task_sha256=bytes(32)),
        Refusal.WRONG_MODEL: small.sealed(1, model_sha256=bytes(32)),
        Refusal.OUT_OF_BOUNDS: small.sealed(1, payload=struct.pack("<4I", 3, 3, 4, 5)),
    }
    for refusal, sealed in bad.items():
        answer = ask(small, sealed)
        assert answer is not None
        assert answer.refusal is refusal
        assert believed(small, answer, sealed, key)
        assert not believed(small, answer, sealed + b"x", key)
        assert not believed(small, answer, sealed, SigningKey.generate().public)
    small.restart()
    for refusal, sealed in bad.items():
        assert small.submit(sealed) is refusal, "and it is true: no start of the enclave counts them"


def test_r177_what_is_counted_is_never_disowned(small: Any) -> None:
    """Before the charge, in it, after the release, and after the end of the task."""
    key = small.round_key()
    sealed = [small.sealed(device) for device in range(3)]
    late = small.sealed(9)
    for one in sealed:
        assert small.submit(one) is None

    def disowned() -> list[bool]:
        return [believed(small, ask(small, one), one, key) for one in (*sealed, late)]

    writes = small.charge().writes
    assert disowned() == [False] * 4, "the charge is not in force: the host may bring back the round"
    small.settle(writes)
    assert disowned() == [False, False, False, True]
    small.restart()
    assert disowned() == [False, False, False, True]
    small.finish()
    assert disowned() == [False, False, False, True]
    small.settle(small.abandon())
    assert ask(small, late) is not None
    assert ask(small, late).refusal is Refusal.TASK_ABANDONED  # type: ignore[union-attr]
    assert disowned() == [False, False, False, True]
    small.restart()
    assert disowned() == [False] * 4, "a new start remembers nothing: a device then charges itself"


def test_r177_a_refusal_before_the_charge_is_in_force_says_nothing(small: Any) -> None:
    """The attack: a late device is refused, the host restarts from before the charge, and its contribution counts."""
    key, late = small.round_key(), small.sealed(9)
    small.fill(range(3))
    before = dict(small.records), {place: list(rows) for place, rows in small.rows.items()}
    small.charge()
    answer = ask(small, late)
    assert answer is not None
    assert answer.refusal is Refusal.ROUND_CLOSED
    small.restart(*before)
    assert small.submit(late) is None, "it counts after all"
    assert not believed(small, answer, late, key)


def test_r177_an_enclave_without_the_round_disowns_nothing_of_it(small: Any) -> None:
    """The attack: the host starts from before the opening, has everything refused there, and goes back."""
    key, sealed = small.round_key(), small.sealed(1)
    opened = dict(small.records)
    without = {name: data for name, data in opened.items() if name.startswith("population/")}
    copy = small.core
    small.restart(without, {})
    answer = ask(small, sealed)
    assert not believed(small, answer, sealed, key)
    small.open()  # the same round under another key, beside the copy that still runs
    answer = ask(small, sealed)
    assert answer is not None
    assert answer.refusal is Refusal.MALFORMED
    assert answer.signature
    assert not believed(small, answer, sealed, key)
    assert copy.submit(small.task_sha256, 0, sealed) is None, "the copy counts it"


@pytest.mark.parametrize("how", ["abandon", "retire"])
def test_r177_the_end_of_a_task_disowns_its_open_round_once_it_is_in_force(small: Any, how: str) -> None:
    key, sealed = small.round_key(), small.sealed(1)
    assert small.submit(sealed) is None
    writes = small.abandon() if how == "abandon" else small.core.set_charter(small.other_owner(SigningKey.generate()))
    answer = ask(small, sealed)
    assert answer is not None
    assert answer.refusal is Refusal.TASK_ABANDONED
    assert not believed(small, answer, sealed, key)
    small.settle(writes)
    assert believed(small, ask(small, sealed), sealed, key)


def test_r177_a_forgotten_task_disowns_nothing(small: Any) -> None:
    key, sealed = small.round_key(), small.sealed(1)
    small.persist(small.core.forget(small.task_sha256))
    assert not believed(small, ask(small, sealed), sealed, key)


def test_r177_a_masked_contribution_with_another_vector_is_not_disowned_with_its_own(make_statistics: Make) -> None:
    """The attack: the host hands the enclave another hash, keeps the signature, and submits the right one."""
    world = make_statistics(40, aggregation="masked")
    world.open()
    key, vector = world.round_key(), bytes(160)
    digest = hashlib.sha256(vector).digest()
    sealed = world.sealed(1, payload=b"s" * 32 + digest)
    answer = ask(world, sealed, masked_sha256=bytes(32))
    assert answer is not None
    assert answer.refusal is Refusal.MALFORMED
    assert not refusal_holds(
        answer.signature, answer.refusal, signing_key=world.identity.signing.public, task_sha256=world.task_sha256,
        round=0, hpke_key=key, sealed=sealed, masked=vector,
    )  # fmt: skip
    assert ask(world, sealed, masked_sha256=digest) is None


def test_r177_what_is_remembered_of_closed_rounds_is_bounded(make_world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusing, "MOST_MARKS", 5)
    world = make_world(minimum=3)
    late = []
    for number in range(2):
        world.open(number)
        late.append((world.sealed(9, number), world.round_key(number)))
        world.fill(range(3), number)
        world.learn(world.close(number))
        assert believed(world, ask(world, late[-1][0], number), *late[-1], number)
    assert not believed(world, ask(world, late[0][0]), *late[0])
    assert world.core.state.closed._marks == 3


def test_r177_the_host_can_ask_for_a_refusal_with_the_first_bytes_alone(small: Any) -> None:
    key, late = small.round_key(), small.sealed(9)
    small.fill(range(3))
    small.close()
    request = aggregator_pb2.SubmitRequest(task_sha256=small.task_sha256, round=0, sealed_contribution=late[:80])
    assert believed(small, small.core.sign_refusal(wire.sealed_of(request)), late, key)
    other = domains.refusal(small.task_sha256, 0, Refusal.ROUND_CLOSED.value, key, bytes(32), b"")
    assert len(other) == 32 + 4 + 1 + 3 * 32
