"""Whatever ends a client's part in a session, nothing secret stays in the client: no key, seed, share or reveal.

The walk follows every attribute, slot and container, and knows each secret: what the client drew, and what it opened.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from odp.crypto.secure_aggregation.client import Client, State
from odp.crypto.signing import SigningKey
from odp.errors import OdpError, StateError
from odp.v1 import secure_aggregation_pb2 as messages

STEPS = ("reveal", "share", "masked", "agree", "unmask")
KEYS = (X25519PrivateKey, Ed25519PrivateKey, AESGCM, SigningKey)


def reached(root: object) -> Iterator[object]:
    """Everything that is held by ``root``, however deep."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (type, str, int, float)):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting += one
        elif not isinstance(one, (bytes, bytearray, np.ndarray, *KEYS)):
            waiting += vars(one).values() if hasattr(one, "__dict__") else []
            waiting += [getattr(one, name) for name in getattr(one, "__slots__", ()) if hasattr(one, name)]


def kept_secrets(client: Client, secrets: list[bytes]) -> list[str]:
    """What of the secrets is still reached from the client."""
    found = []
    for one in reached(client):
        data = bytes(one) if isinstance(one, (bytes, bytearray)) else b""
        if isinstance(one, np.ndarray):
            data = one.tobytes()
        if isinstance(one, KEYS) or any(secret in data for secret in secrets):
            found.append(type(one).__name__)
    return found


class Watched:
    """A session whose client 0 notes what it draws, and what it opens of others."""

    def __init__(self, make_round: Any, step: str) -> None:
        self.run = make_round(8, corrupt=0.0, dropout=0.25)
        self.secrets: list[bytes] = []
        rng = np.random.default_rng(11)

        def drawn(count: int) -> bytes:
            data = rng.bytes(count)
            self.secrets += [data] if count <= 32 else [data[place : place + 8] for place in range(0, count - 7, 8)]
            return data

        identity = SigningKey.from_bytes(bytes(range(32)))
        self.secrets.append(identity.to_bytes())
        self.run.roster.add(identity.public)
        self.client = Client(self.run.configuration, identity, roster=self.run.roster, random_bytes=drawn)
        self.run.clients[0] = self.client
        self.run.until(step)
        self.secrets += [share[:36] for share in self.client._inbox.values()]
        self.secrets += [share[36:] for share in self.client._inbox.values()]
        assert kept_secrets(self.client, self.secrets), "the walk finds what is there"

    def answer(self, step: str, *, bad: bool = False) -> object:
        run, client = self.run, self.client
        calls: dict[str, Callable[[], object]] = {
            "reveal": lambda: client.reveal(messages.SecAggAdverts() if bad else run.adverts),
            "share": lambda: client.share(messages.SecAggReveals() if bad else run.reveals),
            "masked": lambda: client.mask(messages.SecAggInbox() if bad else run.inboxes[0], run.vectors[0]),
            "agree": lambda: client.agree(messages.SecAggSurvivors() if bad else run.survivors),
            "unmask": lambda: client.unmask(messages.SecAggAgreements() if bad else run.agreements[0]),
        }
        return calls[step]()


@pytest.mark.parametrize("step", STEPS)
def test_a_client_that_refuses_keeps_nothing_secret(make_round: Any, step: str) -> None:
    watched = Watched(make_round, step)
    with pytest.raises(OdpError):
        watched.answer(step, bad=True)
    assert watched.client.state is State.ABORTED
    assert kept_secrets(watched.client, watched.secrets) == []


@pytest.mark.parametrize("step", STEPS)
def test_a_client_that_leaves_keeps_nothing_secret_and_answers_no_more(make_round: Any, step: str) -> None:
    watched = Watched(make_round, step)
    watched.client.leave()
    assert kept_secrets(watched.client, watched.secrets) == []
    with pytest.raises(StateError):
        watched.answer(step)
    watched.client.leave()


@pytest.mark.parametrize(("step", "out_of_turn"), [*itertools.permutations(STEPS, 2)])
def test_a_message_out_of_turn_leaves_nothing_secret(make_round: Any, step: str, out_of_turn: str) -> None:
    watched = Watched(make_round, step)
    with pytest.raises(StateError):
        watched.answer(out_of_turn, bad=True)
    assert kept_secrets(watched.client, watched.secrets) == []


def test_an_error_of_the_callers_leaves_nothing_secret(make_round: Any) -> None:
    """A vector of another length, beyond the bound, or a source of random numbers that fails in the middle."""
    for vector in (np.zeros(4, dtype=np.int64), np.full(5, 10**6, dtype=np.int64)):
        watched = Watched(make_round, "masked")
        watched.run.vectors = [vector]
        with pytest.raises(OdpError):
            watched.answer("masked")
        assert kept_secrets(watched.client, watched.secrets) == []
    watched = Watched(make_round, "share")

    def broken(count: int) -> bytes:
        raise OSError("no entropy")

    watched.client._random_bytes = broken
    with pytest.raises(OSError, match="no entropy"):
        watched.answer("share")
    assert kept_secrets(watched.client, watched.secrets) == []


def test_a_client_whose_part_is_done_keeps_nothing_secret(make_round: Any) -> None:
    watched = Watched(make_round, "unmask")
    watched.answer("unmask")
    assert watched.client.state is State.DONE
    assert kept_secrets(watched.client, watched.secrets) == []


def test_a_client_that_masked_keeps_shares_of_others_alone(make_round: Any) -> None:
    """Its own keys and seeds are needed no more: whoever reads it later learns nothing about its vector."""
    watched = Watched(make_round, "agree")
    own = [secret for secret in watched.secrets if len(secret) == 32 and secret != bytes(range(32))]
    assert kept_secrets(watched.client, own) == ["SigningKey"], "the identity, which signs what it was told"
