"""What dishonest clients can do to a session: their messages change nothing, or are found, and the sum is right."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from odp.crypto.secure_aggregation import shamir
from odp.crypto.secure_aggregation.session import seed_sha256
from odp.errors import ConfigurationError, PrivacyError, StateError
from odp.v1 import secure_aggregation_pb2 as messages


def test_a_vector_that_comes_after_its_client_was_declared_dropped_is_not_added(make_round: Any) -> None:
    run = make_round(8, corrupt=0.0, dropout=0.25, gone={"masked": {5}}).until("agree")
    late = run.clients[5].mask(run.inboxes[5], run.vectors[5])
    before = run.server._sum.copy()
    with pytest.raises(StateError, match="too late"):
        run.server.masked(5, late)
    assert np.array_equal(run.server._sum, before)


def test_a_vector_that_comes_twice_counts_once(make_round: Any) -> None:
    run = make_round(8, corrupt=0.0, dropout=0.25).until("masked")
    masked = run.clients[0].mask(run.inboxes[0], run.vectors[0])
    run.server.masked(0, masked)
    before = run.server._sum.copy()
    run.server.masked(0, masked)
    assert np.array_equal(run.server._sum, before)


def _with_wrong_shares(make_round: Any, *, victim: int, liars: int) -> Any:
    """A session whose client 4 dropped out; the first ``liars`` holders give wrong shares of ``victim``."""
    run = make_round(20, corrupt=0.0, dropout=0.25, gone={"masked": {4}}).until("unmask")
    wrong = [holder for holder in run.server._edges[victim] if holder != 4][:liars]
    for number in run._remaining("unmask"):
        given = run.clients[number].unmask(run.agreements[number])
        if number in wrong:
            place = list(given.neighbours).index(victim)
            share = given.shares[place]  # not its lowest bits: X25519 ignores them
            given.shares[place] = share[:1] + bytes([share[1] ^ 1]) + share[2:]
        run.server.unmask(number, given)
    return run, wrong


@pytest.mark.parametrize("liars", [1, 2])
@pytest.mark.parametrize("victim", [4, 5], ids=["mask key", "seed of the self mask"])
def test_wrong_shares_are_found_and_others_take_their_place(make_round: Any, victim: int, liars: int) -> None:
    run, wrong = _with_wrong_shares(make_round, victim=victim, liars=liars)
    here = [number for number in range(20) if number != 4]
    np.testing.assert_array_equal(run.server.finish(), run.vectors[here].sum(axis=0))
    assert run.server._suspects == set(wrong), "and the server knows whose"


@pytest.mark.parametrize("victim", [4, 5], ids=["mask key", "seed of the self mask"])
def test_with_fewer_right_shares_than_the_threshold_there_is_no_sum_and_not_a_wrong_one(
    make_round: Any, victim: int
) -> None:
    run, _ = _with_wrong_shares(make_round, victim=victim, liars=19)
    with pytest.raises(PrivacyError, match="do not give the secret that it committed to"):
        run.server.finish()


def test_what_is_no_share_is_refused_at_once_and_the_sum_is_made_of_the_others(make_round: Any) -> None:
    """Else a client whose numbers are beyond the field would end the round after its charge, with no word why."""
    run = make_round(10, corrupt=0.0, dropout=0.25, gone={"masked": {4}}).until("unmask")
    here = run._remaining("unmask")
    for number in here:
        given = run.clients[number].unmask(run.agreements[number])
        if number == here[0]:
            given.shares[0] = b"\xff" * shamir.SHARE_BYTES
            with pytest.raises(ConfigurationError, match="share"):
                run.server.unmask(number, given)
        else:
            run.server.unmask(number, given)
    assert np.array_equal(run.server.finish(), np.delete(run.vectors, 4, axis=0).sum(axis=0))


@pytest.mark.parametrize("length", [0, 87, 89, 100_000])
def test_sealed_shares_of_another_length_are_not_handed_on(make_round: Any, length: int) -> None:
    run = make_round(8, corrupt=0.0, dropout=0.25).until("share")
    given = run.clients[0].share(run.reveals)
    assert {len(one) for one in given.sealed} == {88}
    given.sealed[0] = bytes(length)
    with pytest.raises(ConfigurationError, match="sealed share"):
        run.server.share(0, given)


def test_an_advert_with_anything_more_than_its_keys_is_refused(make_round: Any) -> None:
    """The server hands adverts on to everybody: what nobody reads would cost a client's bytes times all clients."""
    run = make_round(8, corrupt=0.0, dropout=0.25)
    advert = run.clients[0].advert
    more = b"\x7a\x90\x4e" + bytes(10_000)  # field 15, which this version does not know
    padded = messages.SecAggAdvert.FromString(advert.SerializeToString() + more)
    assert padded.ByteSize() > 10_000
    with pytest.raises(PrivacyError, match="the keys of the client are refused"):
        run.server.advertise(padded)
    run.server.advertise(advert)


@pytest.mark.parametrize("name", ["identity", "channel_key", "mask_key"])
def test_an_advert_with_a_key_in_another_spelling_is_refused_by_the_host_too(make_round: Any, name: str) -> None:
    """It would end the session for every client that was told of it."""
    run = make_round(8, corrupt=0.0, dropout=0.25)
    advert = messages.SecAggAdvert.FromString(run.clients[0].advert.SerializeToString())
    key = int.from_bytes(getattr(run.clients[1].advert, name), "little")
    setattr(advert, name, (2**255 - 1 if name == "identity" else key | 1 << 255).to_bytes(32, "little"))
    with pytest.raises(PrivacyError, match=f"{name} in its canonical encoding"):
        run.server.advertise(advert)


def test_who_commits_to_another_seed_than_it_shares_is_found_before_its_mask_spoils_the_sum(make_round: Any) -> None:
    run = make_round(10, corrupt=0.0, dropout=0.25).until("share")
    for number, client in enumerate(run.clients):
        shares = client.share(run.reveals)
        if number == 3:
            shares.seed_sha256 = bytes(32)
        run.server.share(number, shares)
    run.inboxes = run.server.close_shares()
    for step in ("masked", "agree", "unmask"):
        getattr(run, step)()
    with pytest.raises(PrivacyError, match="the shares of client 3 do not give"):
        run.server.finish()


def test_the_hash_of_a_seed_is_of_its_session_and_no_key_of_its_mask() -> None:
    seed = bytes(range(32))
    first, second = (seed_sha256(seed, bytes([number]) * 32) for number in (1, 2))
    assert len({first, second, seed, hashlib.sha256(seed).digest()}) == 4
    assert first == hashlib.sha256(b"odp/v1/secagg/self-mask" + bytes([1]) * 32 + seed).digest()
