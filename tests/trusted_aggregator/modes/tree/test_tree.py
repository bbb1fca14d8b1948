"""A tree of aggregators gives what one aggregator gives, and nothing else: sums, charges, and what a host can break."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest
from trees import IMAGE, LeafWorld, StatisticsTree, TreeWorld

from odp.algorithms.registry import algorithm_for
from odp.crypto import domains
from odp.crypto.hpke import DecryptionError
from odp.crypto.leaves import leaf_of
from odp.crypto.signing import SignatureError
from odp.errors import AttestationError, ConfigurationError, PrivacyError, Refusal, StateError
from odp.evaluation.noise import NoNoise
from odp.privacy import composition
from odp.privacy.events import Sampling
from odp.privacy.ledger_entry import ReleaseState
from odp.signed.task import open_task
from odp.trust.enclave.platform import EmulatedPlatform
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import aggregator_pb2, common_pb2, leaf_pb2
from trusted_aggregator.boundary import wire
from trusted_aggregator.modes.enclave.sampling import Draw
from trusted_aggregator.modes.tree.enclave_half import Piece

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def platform(tmp_path_factory):
    return EmulatedPlatform.open(tmp_path_factory.mktemp("platform"))


@pytest.fixture
def make(platform):
    def make_tree(kind=TreeWorld, **changes):
        tree = kind(platform, f"tree-{next(_NUMBERS)}", minimum=3, noise=NoNoise(), **changes)
        tree.open()
        for number in range(len(tree.leaves)):
            tree.delegate(number)
        return tree

    return make_tree


@pytest.fixture
def tree(make):
    return make()


def released(tree, signed):
    release = common_pb2.Release.FromString(common_pb2.SignedRelease.FromString(signed).release)
    return release, {one.name: np.frombuffer(one.integers, "<i8").reshape(one.shape) for one in release.tensors}


def exact(tree, devices, round=0):
    """The sum that one aggregator would have made of the same payloads."""
    query = algorithm_for(open_task(tree.task)).query(round)
    total = query.new_sum(oblivious=True)
    total.add([tree.contribution(device, round).payload for device in devices])
    return total.totals()


def standing(tree):
    """Where round 0 stands in the ledger."""
    return tree.core.state.populations[tree.population].find(tree.task_sha256.hex(), 0)


def require_release(tree, signed, devices):
    release, sums = released(tree, signed)
    assert release.contributions == len(devices)
    for name, total in exact(tree, devices).items():
        np.testing.assert_array_equal(sums[name], total)


@pytest.mark.parametrize("leaves", [1, 2, 5])
def test_a_tree_releases_the_sum_that_one_aggregator_would(make, leaves):
    tree = make(leaves=leaves)
    tree.fill(range(20))
    for number in range(leaves):
        tree.hand_in(number)
    require_release(tree, tree.close(), range(20))
    assert (standing(tree).contributions, standing(tree).state) == (20, ReleaseState.SEALED)


def test_a_sum_of_many_pieces_arrives_whole(make):
    tree = make(StatisticsTree, leaves=2)
    kind = type("_Wide", (StatisticsTree,), {"bins": 2**18})
    tree = kind(tree.platform, f"tree-{next(_NUMBERS)}", minimum=3, noise=NoNoise())
    tree.open()
    for number in range(2):
        tree.delegate(number)
    tree.fill(range(8))
    assert len(tree.leaves[0].part()) == 3  # header, and 2 MiB
    for number in range(2):
        tree.hand_in(number)
    require_release(tree, tree.close(), range(8))


@pytest.mark.parametrize("cap", [98, 2])
def test_a_sampled_round_draws_at_the_leaves_and_has_its_cap_at_the_root(make, cap, monkeypatch):
    monkeypatch.setattr(composition, "INTERVAL", composition.COARSE_INTERVAL)

    def sampled(definition):
        definition.cohort.enclave_poisson.probability = 0.5
        definition.cohort.enclave_poisson.most_contributions = 100
        definition.cohort.enclave_poisson.cap = 98

    tree = make(edit=sampled)
    tree.fill(range(20))
    seed = tree.held().record.draw_seed
    tree.held()._draw._cap = cap
    draw = Draw(seed, Sampling(0.5, 100, cap), empty=b"0")
    counted = [device for device in range(20) if draw.counted(tree.contribution(device).contribution_id, b"1") == b"1"]
    assert 0 < len(counted) < 20, "by chance once in 500,000 runs: the coins are secret"
    for number in range(2):
        tree.hand_in(number)
    release, sums = released(tree, tree.close())
    assert release.contributions == 20, "the exact size of a secret sample is not released"
    for name, total in exact(tree, counted).items():
        np.testing.assert_array_equal(sums[name], total if cap == 98 else 0 * total)


class TestDevices:
    def test_a_device_is_taken_by_its_own_leaf_alone_and_once(self, tree):
        for device in range(6):
            own = tree.leaf_of(device)
            sealed = tree.sealed(device)
            assert tree.leaves[1 - own].submit(sealed) is Refusal.WRONG_LEAF
            assert tree.leaves[own].submit(sealed) is None
            assert tree.leaves[own].submit(tree.sealed(device)) is Refusal.ALREADY_CONTRIBUTED
            # Under another id it still has the same pseudonym, so the same leaf.
            other = tree.sealed(device, contribution_id=bytes([device]) * 32, payload=tree.payload(device, seed=1))
            assert tree.leaves[own].submit(other) is Refusal.ALREADY_CONTRIBUTED
            assert tree.leaves[1 - own].submit(other) is Refusal.WRONG_LEAF

    def test_the_root_takes_no_contribution_and_signs_no_refusal(self, tree):
        assert tree.core.submit(tree.task_sha256, 0, tree.sealed(0)) is Refusal.WRONG_LEAF
        request = aggregator_pb2.SubmitRequest(
            task_sha256=tree.task_sha256, round=0, sealed_contribution=tree.sealed(0)
        )
        (refused,) = tree.core.submit_batch([wire.sealed_of(request)])
        assert (refused.refusal, refused.signature) == (Refusal.WRONG_LEAF, b"")
        tree.fill(range(6))
        for number in range(2):
            tree.hand_in(number)
        tree.close()
        (refused,) = tree.core.submit_batch([wire.sealed_of(request)])
        assert refused.signature == b"", "a leaf counted these bytes"

    def test_devices_spread_evenly_and_change_leaves_from_round_to_round(self):
        generator = random.Random(1)
        pseudonyms = [generator.randbytes(32) for _ in range(8000)]
        places = [[leaf_of(bytes(32), round, one, 8) for one in pseudonyms] for round in (0, 1)]
        # Chi-square of 8 cells: false alarm below 1e-5; with a fixed seed, never by chance.
        for place in places:
            counts = np.bincount(place, minlength=8)
            assert ((counts - 1000) ** 2 / 1000).sum() < 37.3
        together = np.mean(np.array(places[0]) == np.array(places[1]))
        assert abs(together - 1 / 8) < 0.02


class TestHosts:
    def test_a_leaf_that_starts_again_takes_back_what_its_host_stored(self, tree):
        tree.fill(range(10))
        before = tree.leaves[0].core.round_state(tree.task_sha256, 0).contributions
        tree.leaves[0].restart()
        assert tree.leaves[0].submit(tree.sealed(30)) is Refusal.WRONG_ROUND  # it has no key yet
        tree.delegate(0)
        assert tree.leaves[0].core.round_state(tree.task_sha256, 0).contributions == before
        for number in range(2):
            tree.hand_in(number)
        require_release(tree, tree.close(), range(10))

    def test_of_two_copies_of_a_leaf_one_sum_counts(self, tree):
        tree.fill(range(10))
        copy = LeafWorld(tree)
        tree.delegate(0, leaf=copy)
        mine = [device for device in range(10) if tree.leaf_of(device) == 0]
        assert copy.submit(tree.sealed(mine[0])) is None
        other = copy.part()
        tree.hand_in(0)
        assert all(tree.core.give_part(tree.task_sha256, 0, piece) for piece in other), "and nothing changes"
        tree.hand_in(1)
        require_release(tree, tree.close(), range(10))

    def test_a_dead_leaf_is_left_out_and_the_charge_is_the_same(self, make):
        charges = []
        for dead in (False, True):
            tree = make()
            tree.fill(range(40))  # so that one leaf has the minimum, however ids fall
            tree.hand_in(0)
            if not dead:
                tree.hand_in(1)
            tree.close()
            entry = tree.ledger().entries[0]
            charges.append((entry.events, entry.task_epsilon))
        assert charges[0] == charges[1]

    def test_below_the_minimum_nothing_is_charged(self, tree):
        tree.fill([device for device in range(40) if tree.leaf_of(device) == 0][:5])
        tree.hand_in(1)  # an empty sum
        with pytest.raises(PrivacyError, match="needs at least 3"):
            tree.charge()
        tree.hand_in(0)
        assert tree.charge().contributions == 5

    def test_a_leaf_stays_closed_and_forgets_the_key(self, tree):
        tree.fill(range(6))
        part = tree.leaves[0].part()
        assert tree.leaves[0].part() == part, "the same bytes at each call"
        free = next(device for device in range(50, 99) if tree.leaf_of(device) == 0)
        assert tree.leaves[0].submit(tree.sealed(free)) is Refusal.ROUND_CLOSED
        held = tree.leaves[0].core.enclave.find_round(tree.task_sha256, 0)
        assert not held.record.hpke_key
        assert not held.record.draw_seed

    def test_the_root_gives_no_key_to_a_leaf_whose_sum_came_or_after_the_charge(self, tree):
        tree.fill(range(40))  # so that one leaf has the minimum, however ids fall
        tree.hand_in(0)
        greeting = tree.leaves[0].greet(tree.core.leaf_nonce(0))
        with pytest.raises(StateError, match="takes no more"):
            tree.core.delegate(tree.task_sha256, 0, 0, greeting)
        tree.settle(tree.charge().writes)
        greeting = tree.leaves[1].greet(tree.core.leaf_nonce(1))
        with pytest.raises(StateError, match="takes no more"):
            tree.core.delegate(tree.task_sha256, 0, 1, greeting)

    def test_a_root_that_starts_again_before_the_charge_takes_the_stored_sums(self, tree):
        tree.fill(range(10))
        tree.hand_in(0)
        tree.restart()
        tree.hand_in(1)
        require_release(tree, tree.close(), range(10))

    def test_a_root_that_starts_again_after_the_charge_releases_the_charged_sums(self, tree):
        tree.fill(range(10))
        for number in range(2):
            tree.hand_in(number)
        tree.settle(tree.charge().writes)
        tree.restart()
        require_release(tree, tree.finish(), range(10))

    @pytest.mark.parametrize("lost", ["a leaf", "a piece", "another sum"])
    def test_after_the_charge_any_other_set_makes_the_round_void(self, tree, lost):
        tree.fill(range(10))
        for number in range(2):
            tree.hand_in(number)
        tree.settle(tree.charge().writes)
        rows = tree.rows[tree.task_sha256, 0]
        kept = {
            "a leaf": [piece for piece in rows if Piece.read(piece).leaf == 0],
            "a piece": rows[1:],
            "another sum": [piece for piece in rows if Piece.read(piece).leaf == 0],
        }[lost]
        if lost == "another sum":
            copy = LeafWorld(tree)
            tree.leaves[1] = copy
            # The host would need the root's secrets for it, which it has no more.
            with pytest.raises(StateError):
                tree.delegate(1)
        tree.restart(rows={(tree.task_sha256, 0): kept})
        assert standing(tree).state is ReleaseState.VOID

    def test_a_piece_of_another_round_leaf_or_place_does_not_open(self, tree):
        tree.fill(range(10))
        pieces = tree.leaves[0].part()
        changed = pieces[0][:-1] + bytes([pieces[0][-1] ^ 1])
        for bad, message in (
            (changed, "changed"),
            (b"", "cut"),
            (b"\0\0\0\1" + pieces[0][4:], "changed"),
            (b"\0\0\0\7" + pieces[0][4:], "no leaf 7"),
            (pieces[1], "instead of 0"),
        ):
            with pytest.raises(StateError, match=message):
                tree.core.give_part(tree.task_sha256, 0, bad)
        tree.hand_in(0)

    def test_a_sum_with_too_many_contributions_is_left_out(self, tree):
        """All 40 at one leaf: false alarm below 1e-11."""
        tree.fill(range(40))
        round = tree.core.state.find_round(tree.task_sha256, 0)
        round._most = 39
        tree.hand_in(0)
        *most, last = tree.leaves[1].part()
        for piece in most:
            tree.core.give_part(tree.task_sha256, 0, piece)
        with pytest.raises(StateError, match="may have 39"):
            tree.core.give_part(tree.task_sha256, 0, last)


class TestAttestation:
    def test_other_code_gets_no_secrets(self, tree):
        other = LeafWorld(tree, image="sha384:" + "1" * 96)
        with pytest.raises(AttestationError, match="not listed"):
            tree.delegate(0, leaf=other)

    def test_another_policy_gets_no_secrets(self, tree):
        laxer = dataclasses.replace(tree.policy.as_role("leaf"), minimum_cohort=2)
        with pytest.raises(AttestationError):
            tree.delegate(0, leaf=LeafWorld(tree, policy=laxer))

    def test_an_aggregator_is_no_leaf(self, tree):
        nonce = tree.core.leaf_nonce(0)
        greeting = tree.leaves[0].greet(nonce)
        evidence = tree.identity.evidence(nonce)
        greeting.evidence.token, greeting.evidence.policy = evidence.token, evidence.policy
        with pytest.raises(AttestationError):
            tree.core.delegate(tree.task_sha256, 0, 0, greeting)

    def test_evidence_over_another_nonce_is_refused(self, tree):
        tree.core.leaf_nonce(0)
        greeting = tree.leaves[0].greet(bytes(32))
        with pytest.raises(AttestationError, match="another caller's nonce"):
            tree.core.delegate(tree.task_sha256, 0, 0, greeting)
        with pytest.raises(StateError, match="no nonce was drawn"):
            tree.core.delegate(tree.task_sha256, 0, 0, greeting)

    def test_a_chip_under_another_root_is_refused(self, tree, tmp_path):
        elsewhere = LeafWorld(tree)
        tree_platform, tree.platform = tree.platform, EmulatedPlatform.open(tmp_path / "other")
        elsewhere.restart()
        tree.platform = tree_platform
        with pytest.raises(AttestationError):
            tree.delegate(0, leaf=elsewhere)

    def test_a_leaf_takes_a_round_from_its_root_alone(self, tree, tmp_path):
        leaf = tree.leaves[0]
        greeting = leaf.greet(tree.core.leaf_nonce(0))
        given = tree.core.delegate(tree.task_sha256, 0, 0, greeting)
        broken = leaf_pb2.Delegation.FromString(given.SerializeToString())
        broken.signature = bytes(64)
        with pytest.raises(SignatureError):
            leaf.core.open_part(broken)
        other = leaf_pb2.DelegationStatement.FromString(given.statement)
        other.leaf = 1
        broken.CopyFrom(given)
        broken.statement = other.SerializeToString(deterministic=True)
        with pytest.raises(SignatureError):
            leaf.core.open_part(broken)
        leaf.core.open_part(given)
        with pytest.raises(StateError, match="no nonce"):
            leaf.core.open_part(given)  # each nonce once

    def test_a_delegation_to_another_leaf_does_not_open(self, tree):
        first, second = tree.leaves
        greeting = first.greet(tree.core.leaf_nonce(0))
        greeting.nonce = second.core.draw_nonce()
        given = tree.core.delegate(tree.task_sha256, 0, 0, greeting)
        with pytest.raises(DecryptionError):
            second.core.open_part(given)

    def test_a_policy_of_a_root_names_how_many_leaves_it_has(self):
        policy = EnclavePolicy(role="aggregator", leaves=4)
        assert EnclavePolicy.from_bytes(policy.to_bytes()) == policy
        assert policy.sha256 != EnclavePolicy(role="aggregator").sha256
        assert policy.as_role("leaf").as_role("aggregator") == policy
        for bad in ({"role": "leaf"}, {"role": "distributor", "leaves": 2}, {"role": "aggregator", "leaves": 65}):
            with pytest.raises(ConfigurationError, match="leaves"):
                EnclavePolicy(**bad)


class TestTasks:
    def test_a_masked_task_is_refused_before_it_begins(self, make):
        tree = make(StatisticsTree)
        tree.aggregation = "masked"
        masked = tree.sign(tree.definition(minimum=3, epsilon=8.0, name="masked"))
        with pytest.raises(PrivacyError, match="masks its contributions"):
            tree.core.check_task(masked)
        tree.adopt(masked)
        with pytest.raises(PrivacyError, match="masks its contributions"):
            tree.open()


def test_a_close_order_is_checked_before_a_leaf_closes(tree):
    order, signature = tree.order(0, domains.CLOSE)
    with pytest.raises(PrivacyError, match="needs at least 3"):
        tree.core.check_close(order, signature, 2)
    with pytest.raises(SignatureError):
        tree.core.check_close(order, bytes(64), 30)
    assert tree.core.check_close(order, signature, 3)
    assert tree.identity.image_digest == IMAGE


@pytest.mark.parametrize("schedules", [30, pytest.param(400, marks=pytest.mark.proof)])
@pytest.mark.slow
def test_schedules_of_loss_reordering_and_deaths_end_with_the_same_sum_or_a_refusal(platform, schedules):
    """Each schedule: pieces of the leaves' sums are lost, repeated and mixed, leaves and root die, until a release."""
    released_sums = refusals = 0
    tree = StatisticsTree(platform, f"tree-{next(_NUMBERS)}", minimum=3, noise=NoNoise())
    for seed in range(schedules):
        chance = random.Random(seed)
        tree.adopt(tree.sign(tree.definition(minimum=3, epsilon=0.01, name=f"schedule-{seed}")))
        tree.rows.clear()
        for leaf in tree.leaves:
            leaf.rows.clear()
        tree.open()
        devices = range(chance.randrange(2, 7))
        for number in range(2):
            tree.delegate(number)
        tree.fill(devices)
        outcome = _play(tree, chance)
        if outcome is None:
            refusals += 1
            found = standing(tree)
            assert found is None or found.state is not ReleaseState.SEALED
            tree.settle(tree.abandon())
        else:
            released_sums += 1
            release, sums = released(tree, outcome)
            counted = [device for device in devices if tree.core_counted[tree.leaf_of(device)]]
            assert release.contributions == len(counted)
            for name, total in exact(tree, counted).items():
                np.testing.assert_array_equal(sums[name], total)
        if seed % 20 == 19:  # a population takes so many tasks
            tree = StatisticsTree(platform, f"tree-{next(_NUMBERS)}", minimum=3, noise=NoNoise())
    assert released_sums > schedules / 4
    assert refusals > schedules / 4


def _play(tree, chance):
    """One schedule to its end: the signed release, or None where the round was never charged or became void."""
    network: list[bytes] = []
    sums: dict[bytes, dict[int, bytes]] = {}
    stored = tree.rows.setdefault((tree.task_sha256, 0), [])
    for _ in range(60):
        event = chance.random()
        number = chance.randrange(2)
        leaf = tree.leaves[number]
        try:
            if event < 0.08:
                leaf.restart()
            elif event < 0.20:
                tree.delegate(number)
            elif event < 0.45:
                network += leaf.part()
            elif event < 0.55:
                chance.shuffle(network)
            elif event < 0.60 and network:
                network.pop(chance.randrange(len(network)))
            elif event < 0.90 and network:
                piece = network.pop(0) if chance.random() < 0.8 else chance.choice(network)
                read = Piece.read(piece)
                sums.setdefault(read.salt, {})[read.number] = piece
                if tree.core.give_part(tree.task_sha256, 0, piece):
                    stored += [one for _, one in sorted(sums[read.salt].items()) if one not in stored]
            elif event < 0.92:
                tree.restart()
            elif event >= 0.92:
                tree.settle(tree.charge().writes)
                if chance.random() < 0.3:
                    tree.restart()
                tree.core_counted = {leaf: tree.held().has(leaf) for leaf in range(2)}
                return tree.finish()
        except (StateError, PrivacyError):
            continue
    return None
