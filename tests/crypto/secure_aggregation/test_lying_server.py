"""What a lying server, a lying client or a changed byte can do to a SecAgg+ session: end it, and nothing else.

Each attack runs a session of honest clients up to the step that it attacks, shows one client something else than the
others, and expects a refusal with its own reason, an aborted client, and erased secrets.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from odp.crypto.public_keys import PRIME
from odp.crypto.secure_aggregation import graph, shamir
from odp.crypto.secure_aggregation.client import Client, State
from odp.crypto.secure_aggregation.parameters import Parameters
from odp.crypto.secure_aggregation.session import (
    Configuration,
    channel_key,
    check_advert,
    mask_seed,
    pack,
    sign_advert,
    unpack,
)
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, OdpError, PrivacyError, StateError
from odp.v1 import secure_aggregation_pb2 as messages

# Of the points of low order of RFC 7748's curve and its twist, one of each order.
LOW_ORDER = [
    bytes(32),
    b"\x01" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    b"\xec" + b"\xff" * 30 + b"\x7f",
]


def refused(client: Client, call: Callable[[], object], match: str, error: type[OdpError] = PrivacyError) -> None:
    with pytest.raises(error, match=match):
        call()
    assert client.state is State.ABORTED
    assert client._live_secrets is None
    assert client._identity is None
    assert not client._inbox


def a_round(make_round: Any, step: str, **changes: Any) -> Any:
    return make_round(8, **{"corrupt": 0.0, "dropout": 0.25, **changes}).until(step)


# The list of keys


def _resigned(run: Any, place: int, **keys: bytes) -> messages.SecAggAdverts:
    """The list with other keys of one client, under a new identity that the server controls."""
    changed = messages.SecAggAdverts.FromString(run.adverts.SerializeToString())
    old = changed.adverts[place]
    values = {"channel_key": old.channel_key, "mask_key": old.mask_key, "commitment": old.commitment, **keys}
    new = sign_advert(SigningKey.generate(), configuration=run.configuration, **values)
    changed.adverts[place].CopyFrom(new)
    return changed


def test_a_client_that_the_server_made_up_is_not_on_the_roster(make_round: Any) -> None:
    run = a_round(make_round, "reveal")
    client = run.clients[0]
    refused(client, lambda: client.reveal(_resigned(run, 3)), "client 3 of the session is not on the roster")


def test_substituted_keys_do_not_carry_the_clients_signature(make_round: Any) -> None:
    run = a_round(make_round, "reveal")
    run.adverts.adverts[3].mask_key = run.adverts.adverts[4].mask_key
    client = run.clients[0]
    refused(client, lambda: client.reveal(run.adverts), "the keys of client 3 are refused: the signature")


def test_one_client_listed_twice_is_refused(make_round: Any) -> None:
    run = a_round(make_round, "reveal")
    run.adverts.adverts[3].CopyFrom(run.adverts.adverts[4])
    client = run.clients[0]
    refused(client, lambda: client.reveal(run.adverts), "client 4 of the session repeats a key of another")


def test_a_client_that_reuses_anothers_key_is_refused(make_round: Any) -> None:
    run = a_round(make_round, "reveal")
    stolen = run.adverts.adverts[4].mask_key
    client = run.clients[0]
    client._roster = None
    refused(client, lambda: client.reveal(_resigned(run, 3, mask_key=stolen)), "repeats a key of another")


@pytest.mark.parametrize("key", LOW_ORDER)
@pytest.mark.parametrize("name", ["channel_key", "mask_key"])
def test_points_of_low_order_are_refused(make_round: Any, key: bytes, name: str) -> None:
    run = a_round(make_round, "reveal")
    client = run.clients[0]
    client._roster = None
    refused(client, lambda: client.reveal(_resigned(run, 3, **{name: key})), "low order")


@pytest.mark.parametrize("name", ["identity", "channel_key", "mask_key"])
@pytest.mark.parametrize("whose", ["another's", "its own"])
def test_another_spelling_of_any_kind_of_key_is_refused(make_round: Any, name: str, whose: str) -> None:
    """Of an identity, a number beyond the field: a key that somebody drew has no second spelling."""
    run = a_round(make_round, "reveal")
    client = run.clients[0]
    client._roster = None
    listed = run.adverts.adverts
    if name == "identity":
        listed[3].identity = (PRIME + 3).to_bytes(32, "little")
    else:
        key = getattr(listed[4 if whose == "another's" else 3], name)
        listed[3].CopyFrom(_resigned(run, 3, **{name: key[:31] + bytes([key[31] | 0x80])}).adverts[3])
    refused(client, lambda: client.reveal(run.adverts), f"{name} in its canonical encoding")


@pytest.mark.parametrize("y", [0, 1, PRIME - 1])
def test_an_identity_that_is_its_own_negation_or_under_which_anybody_can_sign_is_refused(
    make_round: Any, y: int
) -> None:
    run = a_round(make_round, "reveal")
    client = run.clients[0]
    client._roster = None
    for sign in (0, 1):
        run.adverts.adverts[3].identity = (y | sign << 255).to_bytes(32, "little")
        with pytest.raises(PrivacyError, match="low order"):
            check_advert(run.adverts.adverts[3], bytes(32), name="client 3")
    refused(client, lambda: client.reveal(run.adverts), "low order")


@pytest.mark.parametrize("of", ["itself", "another"])
def test_one_key_in_both_roles_is_refused(make_round: Any, of: str) -> None:
    """A mask key that is a channel key, of the same client or of another one."""
    run = a_round(make_round, "reveal")
    client = run.clients[0]
    client._roster = None
    key = run.adverts.adverts[3 if of == "itself" else 5].channel_key
    refused(client, lambda: client.reveal(_resigned(run, 3, mask_key=key)), "repeats a key of another")


@pytest.mark.parametrize("change", ["missing", "other", "twice"])
def test_a_client_whose_own_keys_are_not_listed_once_leaves(make_round: Any, change: str) -> None:
    run = a_round(make_round, "reveal")
    client = run.clients[0]
    if change == "missing":
        del run.adverts.adverts[0]
    elif change == "other":
        run.adverts.adverts[0].commitment = bytes(32)
    else:
        run.adverts.adverts.append(run.adverts.adverts[0])
    refused(client, lambda: client.reveal(run.adverts), "own keys exactly once")


def test_too_few_clients_are_no_crowd(make_round: Any) -> None:
    run = a_round(make_round, "reveal", minimum=8)
    del run.adverts.adverts[7]
    client = run.clients[0]
    refused(client, lambda: client.reveal(run.adverts), "Expected 8 to 200 clients in a session, got 7")


def test_another_configuration_than_the_announced_one_is_refused(make_round: Any, make_config: Any) -> None:
    run = a_round(make_round, "reveal")
    run.adverts.config = make_config(minimum=3, corrupt=0.0, dropout=0.0)
    client = run.clients[0]
    refused(client, lambda: client.reveal(run.adverts), "under another configuration")


def test_clients_of_different_models_are_in_different_sessions(make_round: Any, make_config: Any) -> None:
    """A server that gave clients different models cannot bring them into one list: adverts are signed for one model."""
    run = a_round(make_round, "reveal")
    other = Configuration.open(make_config(model_sha256=b"n" * 32, corrupt=0.0, dropout=0.25))
    stranger = Client(other, SigningKey.generate())
    run.adverts.adverts[3].CopyFrom(stranger.advert)
    client = run.clients[0]
    client._roster = None
    refused(client, lambda: client.reveal(run.adverts), "the keys of client 3 are refused: the signature")


# The order


@pytest.mark.parametrize("change", ["other", "short", "missing", "swapped"])
def test_reveals_that_are_not_what_was_committed_to_are_refused(make_round: Any, change: str) -> None:
    """So the order of the ring is the one that all commitments fixed, and the server cannot derive another."""
    run = a_round(make_round, "share")
    client, reveals = run.clients[0], run.reveals.reveals
    if change == "other":
        reveals[3] = bytes(32)
    elif change == "short":
        reveals[3] = reveals[3][:31]
    elif change == "missing":
        del reveals[3]
    else:
        reveals[3], reveals[4] = reveals[4], reveals[3]
    refused(client, lambda: client.share(run.reveals), "commitment|left some out")


# Shares


@pytest.mark.parametrize("of", ["another session", "another client"])
def test_without_enough_shares_that_open_a_client_sends_no_vector(make_round: Any, of: str) -> None:
    """Shares of another session, or for another client, do not open, and count for nothing."""
    run, old = a_round(make_round, "masked"), a_round(make_round, "masked", seed=0, attempt=1)
    client, inbox = run.clients[0], run.inboxes[0]
    others = old.inboxes[0].sealed if of == "another session" else run.inboxes[1].sealed
    wrong = len(inbox.sealed) - run.server.session.parameters.threshold + 1
    inbox.sealed[:wrong] = others[:wrong]
    refused(client, lambda: client.mask(inbox, run.vectors[0]), "do not open")


def test_a_neighbour_that_seals_garbage_makes_nobody_leave_and_the_sum_is_everybodys(make_round: Any) -> None:
    """Who cannot open its shares masks with it all the same, and gives none of them; the others' are enough."""
    run = make_round(10, corrupt=0.0, dropout=0.25).until("masked")
    number = 4
    holders = run.server._edges[number]
    spare = len(holders) - run.server.session.parameters.threshold
    assert spare >= 1
    for holder in holders[:spare]:
        inbox = run.inboxes[holder]
        inbox.sealed[list(inbox.senders).index(number)] = bytes(88)
    for step in ("masked", "agree", "unmask"):
        getattr(run, step)()
    assert all(number not in run.server._unmasks[holder] for holder in holders[:spare])
    np.testing.assert_array_equal(run.server.finish(), run.vectors.sum(axis=0))


def test_a_client_below_the_threshold_of_shares_sends_no_vector(make_round: Any) -> None:
    run = a_round(make_round, "masked")
    client, inbox = run.clients[0], run.inboxes[0]
    keep = run.server.session.parameters.threshold - 1
    del inbox.senders[keep:], inbox.sealed[keep:]
    refused(client, lambda: client.mask(inbox, run.vectors[0]), "fewer than the threshold")


@pytest.mark.parametrize("senders", [[1, 1, 2, 3, 4, 5, 6], [7, 6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6, 99]])
def test_an_inbox_of_repeated_unordered_or_strange_senders_is_refused(make_round: Any, senders: list[int]) -> None:
    run = a_round(make_round, "masked")
    client, inbox = run.clients[0], run.inboxes[0]
    inbox.senders[:] = senders[: len(inbox.sealed)]
    refused(client, lambda: client.mask(inbox, run.vectors[0]), "ascending order|not neighbours")


def test_a_vector_beyond_the_declared_bound_is_not_sent(make_round: Any) -> None:
    """No overflow modulo the ring: the bound is checked where the number enters it."""
    run = a_round(make_round, "masked")
    client, vector = run.clients[0], run.vectors[0].copy()
    vector[2] = run.configuration.ring.bound + 1
    refused(client, lambda: client.mask(run.inboxes[0], vector), "within -1000 and 1000", ConfigurationError)


# Survivors


def _survivors(run: Any, change: Callable[[Any, Any], None]) -> messages.SecAggSurvivors:
    shared = unpack(run.survivors.shared, clients=len(run.clients), name="shared").copy()
    alive = unpack(run.survivors.survivors, clients=len(run.clients), name="survivors").copy()
    change(shared, alive)
    return messages.SecAggSurvivors(session=run.survivors.session, shared=pack(shared), survivors=pack(alive))


def test_a_client_that_is_listed_as_dropped_gives_no_shares(make_round: Any) -> None:
    """Else the server would hold its masked vector and, from others, the key to its masks."""
    run = a_round(make_round, "agree")
    client = run.clients[0]
    told = _survivors(run, lambda shared, alive: alive.__setitem__(0, False))
    refused(client, lambda: client.agree(told), "lists this client as dropped")


def test_a_survivor_that_never_shared_is_refused(make_round: Any) -> None:
    """Overlapping sets of active and dead clients cannot even be written down: a client is in the sum, or dropped."""
    run = a_round(make_round, "agree")
    client = run.clients[0]
    told = _survivors(run, lambda shared, alive: shared.__setitem__(4, False))
    refused(client, lambda: client.agree(told), "never shared")


def test_other_sharers_than_the_inbox_held_are_refused(make_round: Any) -> None:
    run = make_round(8, corrupt=0.0, dropout=0.25, gone={"share": {4}}).until("agree")
    client = next(each for each in run.clients if 4 in each._neighbours)
    told = _survivors(run, lambda shared, alive: shared.__setitem__(4, True))
    refused(client, lambda: client.agree(told), "other neighbours that shared than before")


def test_a_server_that_isolates_one_client_gets_no_shares(make_round: Any) -> None:
    """All others listed as dropped: their vectors are out of the sum, and the client's would stand alone."""
    run = a_round(make_round, "agree")
    client = run.clients[0]

    def isolate(shared: Any, alive: Any) -> None:
        alive[1:] = False

    refused(client, lambda: client.agree(_survivors(run, isolate)), "1 survivors are fewer than the minimum 3")


def test_survivors_below_the_threshold_among_the_neighbours_are_refused(make_round: Any) -> None:
    run = make_round(40, corrupt=0.0, dropout=0.05).until("agree")
    client = run.clients[0]
    beside = client._neighbours
    assert len(beside) < 30

    def thin(shared: Any, alive: Any) -> None:
        alive[beside[run.server.session.parameters.threshold - 1 :]] = False

    refused(client, lambda: client.agree(_survivors(run, thin)), "surviving neighbours are fewer than the threshold")


def test_more_dropouts_than_declared_are_refused_although_the_minimum_and_the_neighbours_are_there(
    make_round: Any,
) -> None:
    """Of 40 clients, 5 % are 2: with one more, the sum has less noise than is charged."""
    run = make_round(40, corrupt=0.0, dropout=0.05).until("agree")
    client = run.clients[0]
    gone = [number for number in range(1, 40) if number not in client._neighbours][:3]
    told = _survivors(run, functools.partial(_drop, gone))
    refused(client, lambda: client.agree(told), "37 survivors of 40 clients are fewer than 38")


@pytest.mark.parametrize("data", [b"", b"\xff\xff", b"\xff\xff\xff"])
def test_survivors_of_another_size_are_refused(make_round: Any, data: bytes) -> None:
    run = make_round(9, corrupt=0.0, dropout=0.25).until("agree")
    run.survivors.survivors = data
    client = run.clients[0]
    refused(client, lambda: client.agree(run.survivors), "Expected the survivors as|that the session does not have")


def test_a_server_that_tells_two_stories_gets_no_shares(make_round: Any) -> None:
    """Client 0 hears that 5 is in the sum, all others that it dropped out: the signatures do not match."""
    run = make_round(9, corrupt=0.0, dropout=0.25, gone={"masked": {5}}).until("agree")
    lie = _survivors(run, lambda shared, alive: alive.__setitem__(5, True))
    run.clients[0].agree(lie)
    for number in (1, 2, 3, 4, 6, 7, 8):
        run.server.agree(number, run.clients[number].agree(run.survivors))
    answers = run.server.close_agreements()
    client = run.clients[0]
    told = messages.SecAggAgreements.FromString(answers[1].SerializeToString())
    del told.signers[:], told.signatures[:]
    for signer in (one for one in client._committee if one in run.server._agreements):
        told.signers.append(signer)
        told.signatures.append(run.server._agreements[signer])
    refused(client, lambda: client.unmask(told), "was told of other survivors")


def test_a_client_verifies_the_signatures_of_a_committee_that_has_no_neighbour_of_it(make_round: Any) -> None:
    """The committee was told that nobody dropped out, and the server shows its signatures for another list."""
    run = make_round(100, corrupt=0.01, dropout=0.05, lying_server=True).until("agree")
    client = next(each for each in run.clients if not {each._number, *each._neighbours} & set(each._committee))
    gone = min(set(range(100)) - {client._number, *client._neighbours, *client._committee})
    client.agree(_survivors(run, functools.partial(_drop, [gone])))
    signers = sorted(client._committee)
    signatures = [run.clients[signer].agree(run.survivors).signature for signer in signers]
    told = messages.SecAggAgreements(session=run.server.session.id, signers=signers, signatures=signatures)
    refused(client, lambda: client.unmask(told), "was told of other survivors")


@pytest.mark.parametrize("signers", ["neighbours", "committee"])
def test_a_server_that_drops_other_clients_in_each_part_of_the_ring_is_believed_by_one_part_at_most(
    make_round: Any, signers: str
) -> None:
    """Each story alone drops no more than was declared, both together twice as many: too little noise in the sum."""
    run = make_round(100, corrupt=0.01, dropout=0.05, lying_server=True).until("agree")
    session = run.server.session
    assert session.parameters.neighbours == 12
    places = [int(client) for client in graph.order(100, _graph_seed(run))]
    half = {client: place // 50 for place, client in enumerate(places)}
    stories = []
    for start in (0, 50):
        gone = places[start + 9 : start + 42 : 8]
        stories.append(_survivors(run, functools.partial(_drop, gone)))
    agreed: dict[int, bytes] = {}
    for number, client in enumerate(run.clients):
        with contextlib.suppress(PrivacyError):  # those that are told that they dropped out
            agreed[number] = client.agree(stories[half[number]]).signature
    believed = set()
    for number in agreed:
        client = run.clients[number]
        asked = client._neighbours if signers == "neighbours" else graph.committee(np.array(places), neighbours=12)
        same = [other for other in asked if other in agreed and half[other] == half[number]]
        told = messages.SecAggAgreements(session=session.id, signers=same, signatures=[agreed[one] for one in same])
        with contextlib.suppress(PrivacyError):
            client.unmask(told)
            believed.add(half[number])
    assert len(believed) <= 1
    assert believed == {0} or signers == "neighbours"  # the committee was told the first story


def _drop(gone: list[int], shared: Any, alive: Any) -> None:
    alive[gone] = False


def _graph_seed(run: Any) -> bytes:
    session = run.server.session
    return graph.graph_seed(session.id, [one.commitment for one in session.adverts], run.reveals.reveals)


def test_too_few_agreements_are_refused(make_round: Any) -> None:
    run = a_round(make_round, "unmask")
    client, told = run.clients[0], run.agreements[0]
    keep = run.server.session.parameters.threshold - 1
    del told.signers[keep:], told.signatures[keep:]
    refused(client, lambda: client.unmask(told), "of the committee agree on the survivors, fewer than the threshold")


@pytest.mark.parametrize("whom", ["one twice", "a client beside the committee"])
def test_agreements_that_count_one_client_twice_or_one_that_is_not_of_the_committee_are_refused(
    make_round: Any, whom: str
) -> None:
    run = a_round(make_round, "unmask")
    client, told = run.clients[0], run.agreements[0]
    outside = min(set(range(8)) - set(client._committee))
    signers = [told.signers[0], *told.signers[:-1]] if whom == "one twice" else sorted([outside, *told.signers[1:]])
    told.signers[:] = signers
    refused(
        client, lambda: client.unmask(told), "once each" if whom == "one twice" else "not a survivor in the committee"
    )


# The end


def test_a_second_request_to_unmask_gets_nothing(make_round: Any) -> None:
    run = a_round(make_round, "unmask")
    client = run.clients[0]
    first = client.unmask(run.agreements[0])
    assert first.shares
    with pytest.raises(StateError, match="DONE cannot go on as one that is AGREED"):
        client.unmask(run.agreements[0])
    with pytest.raises(StateError):
        client.agree(run.survivors)


def test_a_client_gives_one_share_of_each_neighbour_and_never_both(make_round: Any) -> None:
    run = make_round(10, corrupt=0.0, dropout=0.25, gone={"masked": {4, 5}}).until("unmask")
    client = run.clients[0]
    held = dict(client._inbox)
    given = client.unmask(run.agreements[0])
    assert len(given.shares) == len(held) == len(given.neighbours)
    for neighbour, share in zip(given.neighbours, given.shares, strict=True):
        mask_key, seed = held[neighbour][: shamir.SHARE_BYTES], held[neighbour][shamir.SHARE_BYTES :]
        assert share == (mask_key if neighbour in (4, 5) else seed)


@pytest.mark.parametrize("step", ["reveal", "share", "mask", "agree", "unmask"])
def test_a_message_out_of_turn_aborts(make_round: Any, step: str) -> None:
    run = a_round(make_round, "unmask")
    fresh = Client(run.configuration, SigningKey.generate())
    arguments = {
        "reveal": (run.adverts,), "share": (run.reveals,), "mask": (run.inboxes[0], run.vectors[0]),
        "agree": (run.survivors,), "unmask": (run.agreements[0],),
    }  # fmt: skip
    if step == "reveal":
        fresh.state = State.MASKED
    refused(fresh, lambda: getattr(fresh, step)(*arguments[step]), "cannot go on", StateError)


def test_the_keys_of_an_earlier_session_give_other_secrets_in_the_next_one(make_round: Any) -> None:
    """Two clients that advertise the keys of an earlier session again share another mask and another channel."""
    first, second = a_round(make_round, "share"), a_round(make_round, "share", attempt=1)
    one, two = first.clients[0], second.clients[0]
    made = []
    for run in (first, second):
        session = run.server.session
        assert session.adverts[0].mask_key == one.advert.mask_key == two.advert.mask_key
        own = run.clients[0]._live_secrets
        made.append(mask_seed(own.mask_key, session, 0, 1))
        made.append(channel_key(own.channel, session, 0, 1))
    assert len(set(made)) == 4


def test_a_seed_and_a_channel_key_belong_to_one_pair_and_both_ends_derive_them(make_round: Any) -> None:
    run = a_round(make_round, "share")
    session, clients = run.server.session, run.clients
    for derive, name in ((mask_seed, "mask_key"), (channel_key, "channel")):
        keys = [getattr(client._live_secrets, name) for client in clients]
        pairs = {
            frozenset((one, two)): derive(keys[one], session, one, two)
            for one in range(8) for two in range(8) if one != two
        }  # fmt: skip
        assert len(set(pairs.values())) == len(pairs) == 28
        assert all(
            derive(keys[two], session, two, one) == pairs[frozenset((one, two))] for one, two in ((0, 5), (7, 2))
        )


def test_two_sessions_with_one_identity_share_no_mask(make_round: Any) -> None:
    """Mask reuse: the difference of the masked vectors of two attempts does not show the difference of the vectors."""
    first, second = a_round(make_round, "masked", length=64), a_round(make_round, "masked", length=64, attempt=1)
    zeros = np.zeros(64, dtype=np.int64)
    masked = [np.frombuffer(run.clients[0].mask(run.inboxes[0], zeros).vector, dtype="<u4") for run in (first, second)]
    assert np.count_nonzero(masked[0] - masked[1]) >= 60  # a difference of 5 equal numbers has chance 1e-40


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"bits": 16}, "bits=16"),
        ({"bound": 2**31}, "do not fit a ring of 2\\^32; take bits=64"),
        ({"bits": 64, "bound": 2**62}, "choose a coarser grid"),
        ({"noise_bound": 2**31 - 1}, "do not fit"),
        ({"length": 0}, "length=0"),
        ({"attempt": 4}, "attempt=4"),
        ({"minimum": 1}, "minimum=1"),
        ({"minimum": 201}, "minimum=201"),
        ({"task_sha256": b"short"}, "task_sha256"),
        ({"corrupt": 0.5, "dropout": 0.45}, "cannot be withstood"),
        ({"corrupt": float("nan")}, "corrupt"),
    ],
)
def test_a_configuration_that_could_overflow_or_protects_nobody_is_refused(
    make_config: Any, change: dict[str, Any], match: str
) -> None:
    with pytest.raises(OdpError, match=match):
        Configuration.open(make_config(**change))


def test_a_threshold_below_the_finders_cannot_be_asked_for() -> None:
    """Neighbours and threshold are no fields of the configuration: every client derives them from the threat itself."""
    names = {field.name for field in messages.SecAggConfig.DESCRIPTOR.fields}
    assert not {"threshold", "neighbours", "degree", "t", "k"} & names
    assert Parameters(2, 2).threshold == 2


@settings(deadline=None, max_examples=40)
@given(step=st.sampled_from(["reveal", "share", "mask", "agree", "unmask"]), data=st.data())
def test_a_flipped_bit_or_a_cut_message_is_refused_or_changes_nothing(
    make_round: Any, step: str, data: st.DataObject
) -> None:
    """Whatever one bit or cut does to a message, the client refuses it with a typed error or answers as before."""
    before = {"reveal": "reveal", "share": "share", "mask": "masked", "agree": "agree", "unmask": "unmask"}[step]
    run = a_round(make_round, before)
    message = {
        "reveal": lambda: run.adverts, "share": lambda: run.reveals, "mask": lambda: run.inboxes[0],
        "agree": lambda: run.survivors, "unmask": lambda: run.agreements[0],
    }[step]()  # fmt: skip
    raw = bytearray(message.SerializeToString())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        bit = data.draw(st.integers(0, 8 * len(raw) - 1))
        raw[bit // 8] ^= 1 << bit % 8
    client = run.clients[0]
    try:
        changed = type(message).FromString(bytes(raw))
        call = getattr(client, step)
        answer = call(changed, run.vectors[0]) if step == "mask" else call(changed)
    except OdpError:
        assert client.state is State.ABORTED
    except Exception as error:
        assert type(error).__name__ == "DecodeError", error  # noqa: PT017
    else:
        # A list without one client's advert is a list all the same: of a session that has nothing in common with this.
        another = step == "reveal" and list(changed.adverts) != list(message.adverts)
        assert (answer.session != run.server.session.id) == another
