"""Whose a population is: strangers, retired owners and hosts with old state against one population's budget.

The gravest attack of all: budgets never come back, so whoever can have a round charged can end a population for good.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from callers import program_identity

from odp.crypto import SigningKey, domains
from odp.crypto.signing import SignatureError
from odp.errors import OdpError, PrivacyError, Refusal, StateError
from odp.privacy.ledger_entry import ReleaseState
from odp.signed.charter import approve, found, open_charter, succeed
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.transport.running import Running
from odp.trust.enclave.in_thread import InThread
from odp.v1 import aggregator_pb2, aggregator_pb2_grpc, distributor_pb2, distributor_pb2_grpc, population_pb2
from trusted_aggregator import Config, start
from trusted_aggregator.enclave import process as enclave_process

Make = Callable[..., Any]
SECONDS = 60.0


@pytest.fixture
def world(make_world: Make) -> Any:
    """A population with a founder, whose task is not opened yet."""
    return make_world(minimum=3)


def stranger(world: Any, *, key: SigningKey | None = None, name: str = "theirs") -> Any:
    """Another developer at the same enclave: a task of their own for the world's population, well formed and signed."""
    other = copy.copy(world)
    other.developer = SigningKey.generate() if key is None else key
    other.adopt(other.sign(other.definition(minimum=3, epsilon=8.0, name=name)))
    return other


def in_order(world: Any, round: int = 0) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    return world.order(round, domains.OPEN), world.order(round, domains.CLOSE)


def state(world: Any) -> tuple[bytes, dict[str, bytes], list[Any]]:
    """All that the first developer could miss."""
    record = world.core.state.populations[world.population].record
    return record.encode(), dict(world.records), world.core.round_states()


class TestStrangers:
    def test_r160_a_stranger_with_a_hundred_devices_spends_nothing_of_a_population(self, small: Any) -> None:
        """What an anonymous peer did in two seconds: own task, own round, a hundred contributions, closed, again."""
        small.fill(range(3))
        before = state(small)
        thief = stranger(small)
        for _ in range(3):
            with pytest.raises(PrivacyError, match="belongs to other keys"):
                thief.open()
            answers = [thief.submit(thief.sealed(device)) for device in range(100)]
            assert set(answers) == {Refusal.WRONG_TASK}
            with pytest.raises(OdpError):
                thief.charge()
        assert state(small) == before
        assert small.charges() == 0
        assert small.close()

    def test_r160_orders_under_the_owners_name_need_the_owners_signature(self, small: Any) -> None:
        small.fill(range(3))
        before = state(small)
        thief = copy.copy(small)
        thief.developer = SigningKey.generate()
        with pytest.raises(SignatureError):
            thief.open()
        with pytest.raises(SignatureError):
            thief.charge()
        with pytest.raises(PrivacyError, match="belongs to other keys"):
            thief.abandon()
        assert state(small) == before

    def test_r161_an_unfounded_population_takes_nothing_and_says_how_to_found_it(self, world: Any) -> None:
        elsewhere = copy.copy(world)
        elsewhere.population = "nobodys"
        elsewhere.adopt(elsewhere.sign(elsewhere.definition(minimum=3, epsilon=8.0)))
        with pytest.raises(PrivacyError, match=r"not founded here: a founder .*odp population found"):
            elsewhere.open()
        with pytest.raises(PrivacyError, match="not founded"):
            elsewhere.abandon()
        assert "nobodys" not in world.core.state.populations

    @pytest.mark.parametrize("signers", ["nobody", "a stranger", "both", "a stranger under the founder's name"])
    def test_r161_no_founding_but_a_founders_counts(self, world: Any, signers: str) -> None:
        thief, founder = SigningKey.generate(), world.developer
        charter = found("films-of-others", owners=[thief.public])
        forged = {
            "nobody": charter,
            "a stranger": approve(charter, thief),
            "both": approve(approve(charter, founder), thief),
            "a stranger under the founder's name": population_pb2.SignedCharter(
                charter=charter.charter,
                signatures=[
                    population_pb2.CharterSignature(
                        key=founder.public, signature=thief.sign(domains.CHARTER, charter.charter)
                    )
                ],
            ),
        }[signers]
        with pytest.raises((PrivacyError, SignatureError)):
            world.core.set_charter(forged)
        assert world.core.charter("films-of-others") is None

    def test_r161_a_second_server_with_the_same_name_is_refused_by_name_and_changes_nothing(
        self, make_world: Make
    ) -> None:
        """Both are founders at this enclave, and both call their population the same."""
        key = SigningKey.generate()
        first = make_world(minimum=3, founders=[key])
        second = stranger(first, key=key)
        first.open()
        first.fill(range(3))
        before = state(first)
        theirs = approve(found(first.population, owners=[second.developer.public]), second.developer)
        with pytest.raises(PrivacyError, match="was founded before, by another charter"):
            first.core.set_charter(theirs)
        for call in (second.open, second.abandon):
            with pytest.raises(PrivacyError, match=f"{first.population}' belongs to other keys"):
                call()
        assert state(first) == before
        assert first.close()


class TestOwners:
    def test_r162_owners_change_only_with_the_approvals_of_the_charter_before(self, world: Any) -> None:
        second, third = SigningKey.generate(), SigningKey.generate()
        world.settle(world.core.set_charter(world.other_owner(world.developer, second)))
        before = open_charter(world.core.charter(world.population))
        both = succeed(before, owners=[world.developer.public, second.public], approvals=2)
        world.settle(world.core.set_charter(approve(both, second)))
        before = open_charter(world.core.charter(world.population))
        change = succeed(before, owners=[third.public], approvals=1)
        half = approve(change, second)
        for signed in (change, half, approve(change, third), approve(half, third)):
            with pytest.raises(PrivacyError, match=r"of 2 signatures|not an owner"):
                world.core.set_charter(signed)
        world.settle(world.core.set_charter(approve(half, world.developer)))
        assert open_charter(world.core.charter(world.population)).owners == (third.public,)

    def test_r162_a_charter_of_another_population_or_an_old_one_changes_nothing(self, world: Any) -> None:
        """Owners of one population cannot change another one, and no charter counts a second time."""
        mine = approve(found("mine", owners=[world.developer.public]), world.developer)
        world.settle(world.core.set_charter(mine))
        second = SigningKey.generate()
        world.settle(world.core.set_charter(world.other_owner(world.developer, second)))
        newest = world.core.charter(world.population)
        before = state(world)
        of_mine = approve(succeed(open_charter(mine), owners=[second.public]), world.developer)
        moved = population_pb2.PopulationCharter.FromString(of_mine.charter)
        moved.population = world.population
        crossed = approve(population_pb2.SignedCharter(charter=moved.SerializeToString()), world.developer)
        for replayed in (world.charter, crossed):
            with pytest.raises(PrivacyError, match=r"founded before|does not follow"):
                world.core.set_charter(replayed)
        assert world.core.set_charter(newest) == ()
        assert state(world) == before

    def test_r162_a_retired_owner_spends_nothing_more_and_what_was_collected_is_gone(self, small: Any) -> None:
        small.fill(range(3))
        successor = SigningKey.generate()
        ciphertext = small.sealed(9)
        held = small.held()
        retired = small.core.set_charter(small.other_owner(successor))
        # From the order on, before it is in force: nothing of it may be counted that a crash would lose.
        assert small.submit(ciphertext) is Refusal.TASK_ABANDONED
        assert (held.contributions, held._waiting, held._sum) == (0, [], None)
        small.settle(retired)
        assert not [key for key in small.records if key.startswith(("task/", "round/", "noise/"))]
        for call in (small.open, small.charge, small.seal_release, small.release):
            with pytest.raises(OdpError):
                call()
        assert small.abandon() == (), "it is over already"
        assert small.core.state.populations[small.population].ledger.head.entries == 0
        with pytest.raises(PrivacyError, match="not an owner"):
            small.core.set_charter(small.other_owner(small.developer))

    @pytest.mark.parametrize("killed", ["made", "stored", "in force"])
    def test_r162_no_start_from_older_files_brings_a_retired_owner_back(self, small: Any, killed: str) -> None:
        small.fill(range(3))
        old, rows = dict(small.records), {key: list(kept) for key, kept in small.rows.items()}
        writes = small.core.set_charter(small.other_owner(SigningKey.generate()))
        if killed == "made":
            small.restart()
            assert small.close(), "nothing was promised: the owner is still one"
            return
        small.persist(writes)
        if killed == "in force":
            small.core.commit()
        small.restart()
        assert small.submit(small.sealed(9)) is Refusal.TASK_ABANDONED
        with pytest.raises(StateError, match="rolled back"):
            small.restart(old, rows)
        mixed = {**old, **{key: data for key, data in small.records.items() if key.startswith("population/")}}
        small.restart(mixed, rows)
        for call in (small.open, small.charge, small.seal_release, small.release):
            with pytest.raises(OdpError):
                call()

    def test_r162_a_lost_record_is_no_unfounded_population(self, small: Any) -> None:
        small.restart({}, {})
        thief = SigningKey.generate()
        with pytest.raises(StateError, match="rolled back"):
            small.core.set_charter(small.charter)
        with pytest.raises((PrivacyError, StateError)):
            small.core.set_charter(approve(found(small.population, owners=[thief.public]), thief))

    def test_r162_a_copy_that_is_behind_obeys_no_retired_owner(self, small: Any) -> None:
        """Two enclaves run from one folder; the owner is retired at one of them."""
        small.fill(range(3))
        behind = small.core
        small.restart()
        small.settle(small.core.set_charter(small.other_owner(SigningKey.generate())))
        with pytest.raises(StateError, match="rolled back"):
            behind.charge(*in_order(small)[1])
        with pytest.raises(StateError, match="rolled back"):
            behind.open_round(small.task, *in_order(small)[0])

    def test_r162_evidence_shows_a_charter_only_once_it_is_in_force(self, small: Any) -> None:
        before = small.identity.evidence(bytes(32)).event_log
        writes = small.core.set_charter(small.other_owner(small.developer, SigningKey.generate()))
        assert small.identity.evidence(bytes(32)).event_log == before
        small.settle(writes)
        shown = small.core.charter(small.population)
        line = f"population {small.population} {open_charter(shown).sha256.hex()}"
        assert line in small.identity.evidence(bytes(32)).event_log.decode()

    def test_r162_what_a_retired_owner_charged_stays_charged(self, small: Any) -> None:
        small.fill(range(3))
        small.settle(small.charge().writes)
        small.settle(small.core.set_charter(small.other_owner(SigningKey.generate())))
        assert [entry.state for entry in small.ledger().entries] == [ReleaseState.CHARGED, ReleaseState.VOID]


class Program:
    """An aggregator over TLS: what a device, a caller without a certificate, and a server reach of it."""

    def __init__(self, running: Running, world: Any, folder: Path) -> None:
        self.world = world
        identity = program_identity(folder, "server", folder / "state" / "ca")
        self.public = connect(running.address, identity.ca_pem)
        self.control = connect(running.control_address, identity.ca_pem, identity=identity)
        self.without = connect(running.control_address, identity.ca_pem)
        others = program_identity(folder, "distributor", folder / "state" / "ca")
        self.distributor = connect(running.control_address, identity.ca_pem, identity=others)
        orders = aggregator_pb2_grpc.AggregatorControlServiceStub(self.control)
        orders.SetCharter(aggregator_pb2.SetCharterRequest(charter=world.charter), timeout=SECONDS)


@pytest.fixture
def program(world: Any, tmp_path: Path) -> Iterator[Program]:
    any_port = "127.0.0.1:0"
    config = Config(state=tmp_path / "state", listen=any_port, control_listen=any_port, policy=world.policy)
    launch = InThread(enclave_process.run, digest="sha384:" + "0" * 96)
    running = start(config, log=Log("aggregator", stream=io.StringIO()), launch=launch)
    try:
        yield Program(running, world, tmp_path)
    finally:
        running.stop()


def requests(world: Any) -> dict[str, Any]:
    """Every call of the control service, as a stranger makes it."""
    (order, opening), (_, closing) = in_order(world)
    abandon = population_pb2.AbandonOrder(task_sha256=world.task_sha256).SerializeToString()
    signature = population_pb2.CharterSignature(
        key=world.developer.public, signature=world.developer.sign(domains.ABANDON, abandon)
    )
    charter = approve(found(world.population, owners=[world.developer.public]), world.developer)
    return {
        "OpenRound": aggregator_pb2.OpenRoundRequest(task=world.task, order=order, signature=opening),
        "CloseRound": aggregator_pb2.CloseRoundRequest(order=order, signature=closing),
        "AbandonTask": aggregator_pb2.AbandonTaskRequest(task=world.task, order=abandon, signature=signature),
        "SetCharter": aggregator_pb2.SetCharterRequest(charter=charter),
        "GetRound": aggregator_pb2.GetRoundRequest(task_sha256=world.task_sha256),
        "GetCharters": aggregator_pb2.GetChartersRequest(population=world.population),
    }


def code_of(channel: grpc.Channel, path: str, request: Any) -> grpc.StatusCode:
    call = channel.unary_unary(path, request_serializer=lambda given: given.SerializeToString())
    try:
        call(request, timeout=SECONDS)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
        return code
    return grpc.StatusCode.OK


def test_r160_at_the_port_of_devices_nobody_orders_anything(program: Program) -> None:
    """Neither a stranger nor the owner, under the name of the method now or of before."""
    for world in (stranger(program.world), program.world):
        for method, request in requests(world).items():
            for service in ("AggregatorControlService", "AggregatorService"):
                code = code_of(program.public, f"/odp.v1.{service}/{method}", request)
                assert code is grpc.StatusCode.UNIMPLEMENTED, (service, method)


def test_r160_at_the_control_port_a_server_alone_is_heard_and_an_owner_alone_obeyed(program: Program) -> None:
    thief = stranger(program.world)
    for method, request in requests(thief).items():
        path = f"/odp.v1.AggregatorControlService/{method}"
        assert code_of(program.without, path, request) is grpc.StatusCode.UNAVAILABLE, method
        assert code_of(program.distributor, path, request) is grpc.StatusCode.UNAUTHENTICATED, method
        heard = code_of(program.control, path, request)
        assert (heard is grpc.StatusCode.OK) == (method == "GetCharters"), (method, heard)
    own = requests(program.world)
    path = "/odp.v1.AggregatorControlService/"
    assert code_of(program.control, f"{path}OpenRound", own["OpenRound"]) is grpc.StatusCode.OK
    ledger = aggregator_pb2_grpc.AggregatorServiceStub(program.public).GetLedger(
        aggregator_pb2.GetLedgerRequest(task_sha256=program.world.task_sha256), timeout=SECONDS
    )
    assert b'"entries":0' in ledger.head


def test_r160_a_distributor_takes_models_at_its_control_port_alone() -> None:
    """What is not in the service of the devices' port, no device can call."""
    public = distributor_pb2.DESCRIPTOR.services_by_name["DistributorService"].methods_by_name
    assert {"Publish", "ForgetTask"}.isdisjoint(public)
    assert not hasattr(distributor_pb2_grpc.DistributorServiceServicer, "Publish")
    orders = {"SetCharter", "OpenRound", "GetRound", "CloseRound", "AbandonTask"}
    assert orders.isdisjoint(aggregator_pb2.DESCRIPTOR.services_by_name["AggregatorService"].methods_by_name)
