"""The one order in which the host charges and releases a round, with a half of a mode that needs each step of it."""

from __future__ import annotations

import contextlib
import io

import pytest

from odp.errors import PrivacyError, StateError
from odp.transport.logs import Log
from odp.v1 import aggregator_enclave_pb2, aggregator_pb2, enclave_pb2
from trusted_aggregator.boundary.interface import HostSum
from trusted_aggregator.host.changes import Changes
from trusted_aggregator.host.rounds import HostedRounds
from trusted_aggregator.rounds.host_half import HostHalf, Survivors

TASK = bytes(range(32))
NAME = bytes(32)
CHARGE, RELEASE, VOID = (enclave_pb2.SealedRecord(key=name, data=b"") for name in ("charge", "release", "void"))


class Core:
    """Writes down what it is asked, in one list with the storage and the half."""

    def __init__(self, steps):
        self.steps = steps
        self.released = False

    def announce(self, request):
        self.steps.append(f"announce {request.clients}")

    def charge(self, request):
        self.steps.append("charge")
        writes = [] if self.released else [CHARGE]
        return aggregator_enclave_pb2.ChargedRound(
            task_sha256=TASK, contributions=5, released=self.released, writes=writes
        )

    def commit(self, request):
        self.steps.append("commit")

    def seal_release(self, request):
        self.steps.append(f"seal {request.host_sum.sum.decode() or 'alone'}")
        return aggregator_enclave_pb2.RecordWrites(records=[] if self.released else [RELEASE])

    def give_up(self, request):
        self.steps.append("give up")
        return aggregator_enclave_pb2.RecordWrites(records=[VOID])

    def release(self, request):
        self.steps.append("release")
        return aggregator_enclave_pb2.ReleasedRound()


class Storage:
    def __init__(self, steps):
        self.steps = steps

    def apply(self, writes):
        self.steps += [f"store {record.key}" for record in writes]

    def wait_for(self, task, round, count, *, timeout):
        self.steps.append(f"wait for {count}")

    def record(self, key):
        return b"record"

    def pieces(self, record):
        return iter(())

    def erase(self, task, round):
        self.steps.append("erase")

    def finish_erasing(self):
        pass


class Half(HostHalf):
    """Holds what the charge is for, and waits for its sum; ``failure`` is what becomes of it instead."""

    def __init__(self, world, failure=None):
        self.world, self.failure = world, failure

    @contextlib.contextmanager
    def closing(self, key):
        self.world.steps.append("closing")
        yield
        self.world.steps.append("closed")

    def survivors(self, key):
        return Survivors(5, NAME)

    def to_store(self, charged):
        return 0

    def host_sum(self, charged, survivors, pause):
        with pause():
            assert not self.world.changes._lock.locked(), "others have their turn while it waits"
            self.world.steps.append("sum")
            if self.failure is not None:
                raise self.failure
        return HostSum(b"theirs", survivors.set_sha256)

    def forget(self, key):
        self.world.steps.append("forget")


class World:
    def __init__(self):
        self.steps: list[str] = []
        self.core, storage = Core(self.steps), Storage(self.steps)
        self.changes = Changes(self.core, storage, failed=lambda error: None)
        self.half = HostHalf()
        self.rounds = HostedRounds(self.core, storage, self.changes, self, Log("aggregator", stream=io.StringIO()))

    def of(self, key, charged=None):
        return self.half

    def close(self):
        order = aggregator_pb2.RoundOrder(task_sha256=TASK).SerializeToString()
        self.rounds.close(aggregator_pb2.CloseRoundRequest(order=order))
        return self.steps


@pytest.fixture
def world():
    return World()


def test_what_is_charged_for_is_stored_before_the_charge_and_the_charge_before_the_release(world):
    assert world.close() == [
        "charge", "wait for 5", "store charge", "commit", "seal alone", "store release", "commit", "erase", "release",
    ]  # fmt: skip


def test_a_host_that_holds_contributions_names_them_before_the_charge_and_sums_them_after_it(world):
    world.half = Half(world)
    assert world.close() == [
        "closing", "announce 5", "charge", "wait for 0", "store charge", "commit", "sum",
        "seal theirs", "store release", "commit", "erase", "release", "forget", "closed",
    ]  # fmt: skip


def test_a_round_whose_sum_is_lost_for_good_is_given_up_and_that_is_stored(world):
    world.half = Half(world, PrivacyError("too few shares"))
    with pytest.raises(PrivacyError, match="too few shares"):
        world.close()
    assert world.steps[-3:] == ["sum", "give up", "store void"]


def test_a_round_whose_sum_may_come_back_stays_charged(world):
    world.half = Half(world, StateError("a file is missing"))
    with pytest.raises(StateError, match="a file is missing"):
        world.close()
    assert world.steps[-1] == "sum"


def test_a_round_that_is_released_is_charged_and_sealed_no_second_time(world):
    world.core.released = True
    assert world.close() == ["charge", "seal alone", "commit", "release"]
