"""Kill -9 at every step, and a host that brings back old state, runs two copies, or swaps what it stored."""

from __future__ import annotations

import hashlib

import pytest

from odp.errors import PrivacyError, Refusal, StateError
from odp.privacy.ledger_entry import ReleaseState
from odp.signed.task import task_sha256
from odp.trust.enclave.identity import EnclaveIdentity
from odp.v1 import common_pb2
from trusted_aggregator.boundary.interface import Status
from trusted_aggregator.state import records as names, rollback
from trusted_aggregator.state.sealed_state import Sealer


def sha256_of(signed_release):
    return hashlib.sha256(common_pb2.SignedRelease.FromString(signed_release).release).digest()


def _snapshot(world):
    return dict(world.records), {key: list(rows) for key, rows in world.rows.items()}


class TestKill:
    def test_before_the_opening_is_stored_the_round_can_be_opened_anew(self, make_world):
        world = make_world(minimum=3)
        world.core.open_round(world.task, *world.order(0, b"odp/v1/open"))
        world.restart()
        assert world.core.round_states() == []
        world.open()
        world.fill(range(3))
        world.close()

    def test_while_open_nothing_is_lost_and_nothing_counts_twice(self, small):
        small.fill(range(2))
        lost = small.sealed(7)
        assert small.core.submit(small.task_sha256, 0, lost) is None  # killed before its row was committed
        small.restart()
        assert small.core.round_state(small.task_sha256, 0).contributions == 2
        assert small.submit(small.sealed(0)) is Refusal.ALREADY_CONTRIBUTED
        assert small.submit(lost) is None
        assert small.core.round_state(small.task_sha256, 0).contributions == 3

    def test_a_restart_keeps_the_noise_that_was_drawn(self, small, counting_noise):
        before = small.noise()
        small.made_by = counting_noise
        small.restart()
        small.open()
        after = small.noise()
        assert counting_noise.calls == 0
        assert small.held().record.noise_id == after.noise_id == before.noise_id
        assert (after.arrays["counts"] == before.arrays["counts"]).all()

    @pytest.mark.parametrize("restarts", [1, 2])
    def test_at_every_step_of_closing_the_release_has_the_same_bytes_and_one_charge(self, make_world, restarts):
        """The steps are driven once without a kill for the reference, on the same stored opening and contributions."""

        def never(world):
            pass

        def restart(world):
            for _ in range(restarts):
                world.restart()

        steps = [
            "charge made", "charge stored", "charge in force", "release made", "release stored", "release in force",
            "rows erased",
        ]  # fmt: skip
        for killed in steps:
            world = make_world(minimum=3)
            world.open()
            world.fill(range(4))
            kill = {step: restart if step == killed else never for step in steps}

            charged = world.charge()
            kill["charge made"](world)
            if killed == "charge made":
                assert world.charges() == 0
                charged = world.charge()
            world.persist(charged.writes)
            kill["charge stored"](world)
            world.core.commit()
            kill["charge in force"](world)
            made = world.seal_release()
            kill["release made"](world)
            if killed == "release made":
                assert world.records.get(names.release_key(world.task_sha256, 0)) is None
                made = world.seal_release()
            world.persist(made)
            kill["release stored"](world)
            world.core.commit()
            kill["release in force"](world)
            world.rows.clear()
            kill["rows erased"](world)

            signed = world.release()
            assert world.close() == signed
            world.restart()
            assert world.close() == signed
            assert world.charges() == 1
            assert world.ledger().entries[-1].release_sha256 == sha256_of(signed)

    def test_between_the_two_counters_the_charge_goes_on(self, small, monkeypatch):
        small.fill(range(3))
        small.persist(small.charge().writes)
        counter = type(small.identity.counter("probe"))
        advance = counter.advance

        def killed_at_the_second(self, *, expected, to):
            if self._name.endswith("-b"):
                raise KeyboardInterrupt
            advance(self, expected=expected, to=to)

        monkeypatch.setattr(counter, "advance", killed_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            small.core.commit()
        monkeypatch.undo()
        small.restart()
        small.close()
        assert small.charges() == 1

    def test_with_several_rounds_and_tasks_of_one_population_all_go_on(self, make_world):
        world = make_world(minimum=3)
        for number in range(3):
            world.open(number)
            world.fill(range(4), number)
            world.restart()
            world.settle(world.charge(number).writes)
            world.restart()
            world.learn(world.close(number))
            world.restart()
        assert world.charges() == 3
        world.ledger().verify()


class TestRollback:
    def test_state_from_before_a_charge_is_refused_once_its_release_left(self, small):
        small.fill(range(3))
        old = _snapshot(small)
        small.close()
        with pytest.raises(StateError, match="rolled back"):
            small.restart(*old)

    def test_state_from_before_a_later_charge_is_refused(self, small):
        small.fill(range(3))
        small.learn(small.close())
        small.open(1)
        small.fill(range(3), 1)
        old = _snapshot(small)
        small.close(1)
        with pytest.raises(StateError, match="rolled back"):
            small.restart(*old)

    def test_a_charge_in_force_that_the_host_never_stored_blocks_the_older_state(self, small):
        small.fill(range(3))
        old = _snapshot(small)
        small.charge()
        small.core.commit()
        with pytest.raises(StateError, match="rolled back"):
            small.restart(*old)

    def test_nothing_leaves_that_rests_on_a_change_that_is_not_in_force(self, small):
        small.fill(range(3))
        small.persist(small.charge().writes)
        with pytest.raises(StateError, match="not stored yet"):
            small.seal_release()
        small.core.commit()
        small.persist(small.seal_release())
        with pytest.raises(PrivacyError, match="no release in force"):
            small.release()
        small.core.commit()
        small.release()

    def test_a_lost_ledger_is_no_empty_ledger(self, small):
        small.fill(range(3))
        small.close()
        del small.records[names.population_key(small.population)]
        with pytest.raises(StateError, match="lack population"):
            small.restart()
        small.restart({}, {})
        with pytest.raises(PrivacyError, match="not founded"):
            small.open()
        with pytest.raises(StateError, match="rolled back"):
            small.core.set_charter(small.charter)

    def test_new_keys_on_the_same_platform_get_no_new_budget(self, small):
        small.fill(range(3))
        small.close()
        small.identity, small.sealed_keys = EnclaveIdentity.restore_or_create(guest=small.guest(), sealed=None)
        small.restart({}, {})
        with pytest.raises(StateError, match="rolled back"):
            small.core.set_charter(small.charter)

    def test_of_two_charges_from_one_state_only_one_is_ever_released(self, small):
        """The same noise under two sets: the host restarts between the charges and keeps both of the new records."""
        small.fill(range(3))
        before = _snapshot(small)
        small.persist(small.charge().writes)
        first = _snapshot(small)
        small.restart(*before)
        small.records, small.rows = dict(before[0]), {key: list(rows) for key, rows in before[1].items()}
        assert small.submit(small.sealed(7)) is None
        small.settle(small.charge().writes)
        second = _snapshot(small)
        released = small.finish()
        sealed = _snapshot(small)
        for other in (first, before):
            with pytest.raises(StateError, match="rolled back"):
                small.restart(*other)
        with pytest.raises(StateError, match="rolled back"):
            small.restart(*second)
        small.restart(*sealed)
        assert small.release() == released

    def test_of_two_copies_that_run_at_once_only_one_releases(self, small):
        small.fill(range(3))
        state = _snapshot(small)
        one = small.core
        small.restart(*state)
        other = small.core
        assert small.submit(small.sealed(7)) is None
        order = small.order(0, b"odp/v1/close")
        one.charge(*order)
        other.charge(*order)
        one.commit()
        with pytest.raises(StateError, match="rolled back"):
            other.commit()
        with pytest.raises(StateError, match="rolled back"):
            other.ledger(small.task_sha256)

    def test_a_copy_that_is_behind_neither_opens_nor_charges(self, small):
        small.fill(range(3))
        state = _snapshot(small)
        behind = small.core
        small.restart(*state)
        small.close()
        with pytest.raises(StateError, match="rolled back"):
            behind.charge(*small.order(0, b"odp/v1/close"))
        fresh = small.sign(small.definition(minimum=3, epsilon=1.0, name="other"))
        order, signature = small.order(0, b"odp/v1/open", task_sha256=task_sha256(fresh))
        with pytest.raises(StateError, match="rolled back"):
            behind.open_round(fresh, order, signature)

    def test_stamps_of_siblings_differ_and_grow(self):
        """False alarm rate: two of 1000 pairs of 48 random bits agree with probability below 1e-22."""
        parent = rollback.Stamp(5, 9)
        children = {parent.successor() for _ in range(1000)}
        assert len(children) == 1000
        assert all(child.first > parent.first and child.second > parent.second for child in children)


class TestSwappedState:
    @pytest.fixture
    def charged(self, small):
        small.fill(range(4))
        small.settle(small.charge().writes)
        return small

    def _is_void(self, world):
        assert world.core.round_state(world.task_sha256, 0).status is Status.VOID
        for call in (world.charge, world.seal_release, world.open):
            with pytest.raises(PrivacyError, match="void"):
                call()
        with pytest.raises(PrivacyError, match="no release in force"):
            world.release()
        assert world.submit(world.sealed(9)) is Refusal.ROUND_CLOSED
        assert world.charges() == 1

    def test_another_set_for_the_charged_noise_voids_the_round_and_the_charge_stays(self, charged):
        for rows in (
            charged.rows[charged.task_sha256, 0][1:],
            [*charged.rows[charged.task_sha256, 0], charged.sealed(7)],
            [*charged.rows[charged.task_sha256, 0][1:], charged.sealed(7)],
            [],
        ):
            charged.restart(rows={(charged.task_sha256, 0): rows})
            self._is_void(charged)

    def test_a_void_round_is_written_to_the_ledger_and_stays_void_whatever_comes_back(self, charged):
        rows = {key: list(kept) for key, kept in charged.rows.items()}
        charged.restart(rows={})
        written, void, *erased = charged.restored_writes
        assert written.key == names.population_key(charged.population)
        assert void.key == names.ledger_key(charged.population, 1)
        assert [(record.key, record.data) for record in erased] == _without(charged)
        charged.persist(charged.restored_writes)
        charged.restart(rows=rows)
        self._is_void(charged)
        assert charged.restored_writes == ()
        ledger = charged.ledger()
        assert [entry.state for entry in ledger.entries] == [ReleaseState.CHARGED, ReleaseState.VOID]
        ledger.verify()

    def test_a_round_whose_release_is_sealed_is_never_written_as_void(self, charged):
        before = dict(charged.records)
        signed = charged.finish()
        key = names.round_key(charged.task_sha256, 0)
        charged.restart({**charged.records, key: before[key]}, {})
        assert charged.core.round_state(charged.task_sha256, 0).status is Status.RELEASED
        assert [(record.key, record.data) for record in charged.restored_writes] == _without(charged)
        assert charged.release() == signed

    def test_the_order_of_the_same_set_and_repeated_rows_do_not_matter(self, charged):
        rows = charged.rows[charged.task_sha256, 0]
        reference = charged.seal_release()
        charged.restart(rows={(charged.task_sha256, 0): [*reversed(rows), *rows]})
        assert _opened(charged, charged.seal_release()) == _opened(charged, reference)

    def test_another_payload_under_the_same_id_voids_the_round(self, charged):
        """The host held back a device's second try: the difference of two releases would be that of its payloads."""
        rows = list(charged.rows[charged.task_sha256, 0])
        rows[2] = charged.sealed(2, payload=charged.payload(2, seed=1))
        assert charged.payload(2, seed=1) != charged.payload(2)
        charged.restart(rows={(charged.task_sha256, 0): rows})
        self._is_void(charged)

    def test_the_same_payload_sealed_again_is_the_same_set(self, charged):
        reference = charged.seal_release()
        rows = [charged.sealed(device) for device in range(4)]
        charged.restart(rows={(charged.task_sha256, 0): rows})
        assert _opened(charged, charged.seal_release()) == _opened(charged, reference)

    def test_another_opening_of_the_round_does_not_open_nor_does_its_noise(self, small):
        other = dict(small.records)
        key = names.population_key(small.population)
        small.restart({key: small.records[key]}, {})
        small.open()
        small.fill(range(4))
        small.settle(small.charge().writes)
        round_key, noise_key = names.round_key(small.task_sha256, 0), names.noise_key(small.task_sha256, 0)
        with pytest.raises(StateError, match="sealed record"):
            small.restart({**small.records, round_key: other[round_key]})
        small.restart()
        right, small.records[noise_key] = small.records[noise_key], other[noise_key]
        with pytest.raises(StateError, match="sealed record"):
            small.seal_release()
        small.records[noise_key] = right
        small.finish()

    def test_a_lost_round_is_void_whatever_comes_back(self, charged):
        without = dict(charged.records)
        del without[names.round_key(charged.task_sha256, 0)]
        charged.restart(without)
        self._is_void(charged)
        charged.restart()
        self._is_void(charged)

    def test_lost_noise_gives_nothing_and_the_round_can_be_given_up(self, charged):
        del charged.records[names.noise_key(charged.task_sha256, 0)]
        with pytest.raises(StateError, match="noise of round 0 is not stored"):
            charged.seal_release()
        charged.persist(charged.core.give_up(charged.task_sha256, 0))
        self._is_void(charged)
        charged.restart()
        self._is_void(charged)

    def test_older_records_of_a_released_round_give_the_same_bytes(self, charged):
        old, rows = _snapshot(charged)
        signed = charged.close()
        population, release = names.population_key(charged.population), names.release_key(charged.task_sha256, 0)
        sealed = names.ledger_key(charged.population, 1)
        mixed = {**old, population: charged.records[population], sealed: charged.records[sealed]}
        for kept in (rows, {}):
            charged.restart(mixed, kept)
            assert charged.core.round_state(charged.task_sha256, 0).status is Status.RELEASED
            assert charged.core.release(charged.order(0, b"odp/v1/close")[0], stored=charged.records[release]) == signed

    def test_a_record_in_anothers_place_or_changed_does_not_open(self, charged):
        for key, data in list(charged.records.items()):
            for changed in (
                data[:-1],
                data[:-1] + bytes([data[-1] ^ 1]),
                b"",
                charged.records[names.task_key(charged.task_sha256)]
                if not key.startswith("task/")
                else bytes(len(data)),
            ):
                if key.startswith(names.LATER_PREFIXES):
                    continue  # not read by a start
                with pytest.raises(StateError, match=r"sealed record|stored entries"):
                    charged.restart({**charged.records, key: changed})

    def test_a_stored_release_that_is_missing_or_another_one_is_not_handed_out(self, charged):
        charged.close()
        order = charged.order(0, b"odp/v1/close")[0]
        with pytest.raises(StateError, match="not stored"):
            charged.core.release(order, stored=b"")
        with pytest.raises(StateError, match="sealed record"):
            charged.core.release(order, stored=bytes(100))

    def test_the_next_round_cannot_follow_a_void_one(self, charged):
        charged.restart(rows={})
        charged.broadcasts[1] = charged.broadcasts[0]
        with pytest.raises(PrivacyError, match="before round 0"):
            charged.open(1)


def _without(world):
    """That the records of round 0 are erased."""
    task = world.task_sha256
    return [(names.round_key(task, 0), None), (names.noise_key(task, 0), None)]


def _opened(world, writes):
    """The plaintexts of records, but for the population's, whose stamps are random."""
    sealer = Sealer(world.identity.sealing_key)
    return {
        record.key: record.data
        if record.key.startswith(names.LEDGER_PREFIX)
        else record.data and sealer.open(record.key, record.data)
        for record in writes
        if not record.key.startswith(names.POPULATION_PREFIX)
    }
