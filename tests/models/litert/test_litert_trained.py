"""Federated training of a compiled network: devices behind walls make the payloads that the simulator makes."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from fixed_times import impatient_times

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed: pip install 'odp-platform[litert]'")

from device_runtime.isolated.training import IsolatedTrainer
from device_runtime.round.computations import RoundComputation
from device_runtime.round.computing_processes import ComputingProcesses
from device_runtime.round.contribution import Contributing, There
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import Work, open_assignment
from device_runtime.tasks.computing_terms import Place
from odp.algorithms.fedavg.config import DPFedAvg
from odp.algorithms.federated.terms import PARAMETERS, RELEASE
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalRows, NoisyTensors, ProgramClient
from odp.crypto.signing import SigningKey
from odp.datasets.examples import UsersExamples
from odp.errors import ConfigurationError, StateError
from odp.models.examples import Examples
from odp.models.features import Tensor
from odp.models.litert.program import Program
from odp.models.litert.trained import MOST_COMPRESSED, MOST_FLATBUFFER, TrainedNetwork, network_message
from odp.models.litert.trainer import MOST_MEMORY, Measured
from odp.models.public_matrix import public_matrix_from
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.model import Slices
from odp.protocol.wire.tables import manifest_for
from odp.signed.task import check_definition, sign_manifest, sign_task, task_sha256
from odp.v1 import common_pb2, federated_pb2, server_pb2

from . import hostile
from .compile_mlp import CLASSES, FEATURES, stored

USERS = 6
START = (np.random.default_rng(4).normal(size=stored().size) * 0.5).astype(np.float32)
EXAMPLES = Examples({"x": Tensor((FEATURES,), -2.0, 2.0, scale=0.5)}, label="kind")


def definition_of(
    program: Program | None = None, training: DPFedAvg | None = None, data: Examples = EXAMPLES
) -> common_pb2.TaskDefinition:
    privacy = UserLevelDP(epsilon=4, delta=1e-5)
    definition = common_pb2.TaskDefinition(
        name="digits",
        population="people",
        developer_key=SigningKey.generate().public,
        privacy=common_pb2.PrivacyTerms(epsilon=privacy.epsilon, delta=privacy.delta),
        cohort=Cohort(minimum=2, goal=USERS).to_proto(privacy.delta),
    )
    definition.network.CopyFrom(network_message(program or stored(), START))
    data.write(definition)
    (training or DPFedAvg(rounds=2, epochs=2, batch=4, rate=0.2)).write(definition)
    return definition


def people() -> UsersExamples:
    """Ragged users, the first without examples, with examples that devices leave out."""
    generator = np.random.default_rng(1)
    features = (generator.normal(size=(60, FEATURES)) * 2.0).astype(np.float32)
    targets = generator.integers(0, CLASSES, 60).astype(np.float32)
    features[3, 2], targets[5:8] = np.nan, np.nan
    counts = np.array([0, 1, 9, 20, 3, 27])
    return UsersExamples(features, targets, np.arange(60), np.concatenate(([0], np.cumsum(counts))))


def rows_of(users: UsersExamples, user: int) -> LocalRows:
    rows = users.rows[users.offsets[user] : users.offsets[user + 1]]
    return LocalRows(np.arange(len(rows)), users.targets[rows].astype(np.float64), {"x": users.features[rows]})


def slices_of(parameters: np.ndarray) -> Slices:
    return Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), {PARAMETERS: parameters})


@pytest.fixture(scope="module")
def trainer() -> Iterator[IsolatedTrainer]:
    with IsolatedTrainer() as made:
        yield made


def test_devices_behind_walls_and_the_simulator_make_the_same_sum(trainer: IsolatedTrainer) -> None:
    definition, users = definition_of(), people()
    check_definition(definition)
    algorithm = algorithm_for(definition)
    matrix = public_matrix_from(definition, START.tobytes())
    server = algorithm.server(item_features=matrix)
    state = server.start()
    for round in range(server.rounds):
        broadcast = server.broadcast(state)
        seeds = np.arange(USERS, dtype=np.uint64) + 100
        expected = algorithm.population().contribute(broadcast, users, round=round, seeds=seeds)[RELEASE]
        client = algorithm.client()
        assert isinstance(client, ProgramClient)
        client = client.run_by(trainer)
        total = np.zeros(len(expected), dtype=np.int64)
        for user, seed in enumerate(seeds.tolist()):
            own = algorithm.data_of(rows_of(users, user))
            payload, _ = client.contribute(slices_of(broadcast.dense[PARAMETERS]), own, round=round, seed=seed)
            algorithm.query(round).check(payload)
            total += np.frombuffer(payload, dtype="<i4")
        np.testing.assert_array_equal(total, expected)
        assert expected.any()
        step = algorithm.query(round).releases[0].step
        state = server.step(state, NoisyTensors(round, {RELEASE: expected * step}, USERS))
    assert not np.array_equal(server.broadcast(state).dense[PARAMETERS][:, 0], START)


def test_training_begins_with_the_weights_that_the_definition_names() -> None:
    definition = definition_of()
    matrix = public_matrix_from(definition, START.tobytes())
    server = algorithm_for(definition).server(item_features=matrix)
    np.testing.assert_array_equal(server.broadcast(server.start()).dense[PARAMETERS][:, 0], START)
    for data, named in ((b"", "bytes"), (bytes(4 * len(START)), "SHA-256")):
        with pytest.raises(ConfigurationError, match=named):
            public_matrix_from(definition, data)
    with pytest.raises(ConfigurationError, match="first parameters"):
        algorithm_for(definition).server().start()


def test_without_first_weights_training_begins_with_zeros() -> None:
    definition = definition_of()
    definition.network.start_sha256 = b""
    assert public_matrix_from(definition, b"") is None
    server = algorithm_for(definition).server()
    assert not server.broadcast(server.start()).dense[PARAMETERS].any()
    with pytest.raises(ConfigurationError, match="SHA-256"):
        public_matrix_from(definition, START.tobytes())


def test_first_weights_that_are_not_finite_are_refused() -> None:
    definition = definition_of()
    wild = np.full(len(START), np.nan, dtype=np.float32).tobytes()
    definition.network.start_sha256 = hashlib.sha256(wild).digest()
    with pytest.raises(ConfigurationError, match="finite"):
        public_matrix_from(definition, wild)


@pytest.mark.parametrize("make", [hostile.crashing, hostile.refusing, hostile.hungry], ids=lambda make: make.__name__)
def test_a_hostile_program_fails_alone(trainer: IsolatedTrainer, make: Callable[[Program], Program]) -> None:
    """What fails is answered by the empty contribution (``device_runtime.round.contribution``)."""
    algorithm = algorithm_for(definition_of(make(stored())))
    client = algorithm.client()
    assert isinstance(client, ProgramClient)
    own = algorithm.data_of(rows_of(people(), 3))
    with pytest.raises(Exception, match="on_execute of the service failed"):
        client.run_by(trainer).contribute(slices_of(START[:, None]), own, round=0, seed=1)
    algorithm.query(0).check(client.empty(0))


def test_nothing_of_a_program_runs_where_a_device_is() -> None:
    class Trainer:
        def require(self, program: Program, *, most_examples: int) -> None:
            assert most_examples == 2000

        def difference(self, *_: object, **__: object) -> np.ndarray:
            raise AssertionError

        def measured(self, *_: object, **__: object) -> Measured:
            raise AssertionError

    definition = definition_of(training=DPFedAvg(rounds=1, epochs=2, batch=4))
    model = TrainedNetwork.of(definition.network)
    users = people()
    training = DPFedAvg(rounds=1, epochs=2, batch=4).local()
    with pytest.raises(StateError, match="trainer"):
        model.difference(START, *users.of(2), training, seed=1, round=0)
    device = model.on_device(Trainer(), training)
    for measured in (device.losses, device.measures):
        with pytest.raises(StateError):
            measured(START, *users.of(2))
    for ranked in (False, True):
        with pytest.raises(StateError, match="process of a device"):
            device.tested_here(START, *users.of(2), ranked=ranked)
    with pytest.raises(StateError, match="trainer"):
        model.tested(START, *users.of(2), ranked=False)
    with pytest.raises(StateError):
        device.classes(START, users.of(2)[0])


def test_a_device_without_a_trainer_refuses_by_name() -> None:
    client = algorithm_for(definition_of()).client()
    assert isinstance(client, ProgramClient)
    with pytest.raises(ConfigurationError, match="trains no networks"):
        client.run_by(None)


@pytest.mark.parametrize(
    ("training", "named"),
    [
        (DPFedAvg(rounds=1, batch=5), "batch=5 to be at most batch=4"),
        (DPFedAvg(rounds=1, batch=4, most_examples=2**20, epochs=1000), "most_examples=1048576"),
    ],
    ids=["batch", "memory"],
)
def test_trainings_that_devices_could_not_run_are_refused_by_name(training: DPFedAvg, named: str) -> None:
    program = dataclasses.replace(stored(), features=(dataclasses.replace(stored().features[0], shape=(60,)),))
    data = Examples({"x": Tensor((60,), -2.0, 2.0)}, label="kind")
    with pytest.raises(ConfigurationError, match=named):
        algorithm_for(definition_of(program, training, data)).check()


def test_a_proximal_term_needs_a_program_with_one() -> None:
    training = DPFedAvg(rounds=1, batch=4, proximal=0.1)
    algorithm_for(definition_of(training=training)).check()
    without = dataclasses.replace(stored(), proximal=False)
    with pytest.raises(ConfigurationError, match=r"proximal=0\.1"):
        algorithm_for(definition_of(without, training)).check()


def test_examples_of_another_shape_are_refused() -> None:
    data = Examples({"x": Tensor((2, 2), -2.0, 2.0)}, label="kind")
    with pytest.raises(ConfigurationError, match=r"\(6,\).*\(2, 2\)"):
        algorithm_for(definition_of(data=data)).check()
    flat = Examples({"x": Tensor((2, 2), -2.0, 2.0), "z": Tensor((2,), -2.0, 2.0)}, label="kind")
    algorithm_for(definition_of(data=flat)).check()


def _too_large(message: federated_pb2.NetworkModel) -> None:
    flatbuffer = bytes(MOST_FLATBUFFER + 1)
    message.program, message.program_sha256 = zlib.compress(flatbuffer), hashlib.sha256(flatbuffer).digest()


def _set(name: str, value: object) -> Callable[[federated_pb2.NetworkModel], None]:
    return lambda message: setattr(message, name, value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_set("description", "{}"), "description"),
        (_set("program", b"no zlib"), "compressed by zlib"),
        (_set("program", bytes(MOST_COMPRESSED + 1)), "at most"),
        (_set("program", zlib.compress(bytes(8)) + b"x"), "at most"),
        (_set("program_sha256", bytes(32)), "SHA-256"),
        (_set("start_sha256", b"x"), "start_sha256"),
        (_too_large, "at most"),
    ],
    ids=["description", "compression", "compressed", "trailing", "hash", "start", "large"],
)
def test_a_damaged_network_is_refused(change: Callable[[federated_pb2.NetworkModel], None], named: str) -> None:
    definition = definition_of()
    change(definition.network)
    with pytest.raises(ConfigurationError, match=named):
        algorithm_for(definition).check()


def test_a_program_with_large_constants_is_refused_when_it_is_written() -> None:
    random = np.random.default_rng(1).bytes(MOST_COMPRESSED + 1)
    with pytest.raises(ConfigurationError, match="layers that are not trained"):
        network_message(dataclasses.replace(stored(), flatbuffer=random), START)


def test_a_signed_task_stays_small() -> None:
    assert len(sign_task(definition_of(), SigningKey.generate()).definition) < 20_000


def _work(definition: common_pb2.TaskDefinition, trainer: IsolatedTrainer) -> Work:
    """Round 0 of the task, as a device checks it."""
    developer = SigningKey.generate()
    task = sign_task(definition, developer)
    server = algorithm_for(definition).server(item_features=public_matrix_from(definition, START.tobytes()))
    manifest = sign_manifest(manifest_for(server.broadcast(server.start()), task_sha256(task)), developer)
    nobody = "127.0.0.1:1"
    assignment = server_pb2.Assignment(
        task=task, model=manifest, round=0, distributor_address=nobody, aggregator_address=nobody
    )
    return open_assignment(assignment, population="people", trainer=trainer)


@pytest.mark.parametrize(
    ("make", "seconds"),
    [(None, 60.0), (hostile.crashing, 60.0), (hostile.refusing, 60.0), (hostile.hungry, 60.0), (hostile.endless, 1.5)],
    ids=["honest", "crashing", "refusing", "hungry", "endless"],
)
@pytest.mark.slow
def test_a_device_with_a_hostile_program_sends_the_empty_contribution(
    trainer: IsolatedTrainer, tmp_path: Path, make: Callable[[Program], Program] | None, seconds: float
) -> None:
    """And the process of its program is gone: another one waits for the next contribution."""
    program = stored() if make is None else make(stored())
    # With so many steps, the endless program takes minutes.
    work = _work(definition_of(program, DPFedAvg(rounds=1, epochs=500, batch=4, rate=0.2)), trainer)
    assert work.computing.place is Place.PROCESS
    assert work.computing.worst_bytes > MOST_MEMORY, "that of the program counts"
    client, query = work.model.client, work.model.queries[0]
    rows = rows_of(people(), 3)
    before = _processes_below()
    with contextlib.closing(ComputingProcesses()) as processes, Store.open_or_create(tmp_path / "0.sqlite") as store:
        columns = {"x": rows.features["x"], "kind": rows.values}
        store.fill_examples(columns, filled_from=b"data", time=0.0)
        computation = RoundComputation(
            definition=work.definition, client=client, round=0, seed=1, now=0.0, keyed=False
        )  # fmt: skip
        computer = There(
            store, computation, processes.of(work.definition, (), seconds=60.0), most_keys=0,
            payload_bytes=query.payload_bytes,
        )  # fmt: skip
        with Contributing(
            impatient_times(wait=lambda _, finished: finished.wait(seconds)),
            dataclasses.replace(work.computing, seconds=80.0),
            computer, keyed=False, check=query.check, empty=client.empty(0),
        ) as made:  # fmt: skip
            with computer.reserved():
                program_process = _newest_below()
            sent = made.contribution(slices_of(START[:, None]))
        assert (sent.payload == client.empty(0)) is (make is not None)
        query.check(sent.payload)
        psutil.wait_procs([program_process], timeout=60.0)
        assert not program_process.is_running()
    assert _processes_below() <= before


def _processes_below() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True) if process.status() != "zombie"}


def _newest_below() -> psutil.Process:
    return max(psutil.Process().children(recursive=True), key=lambda process: (process.create_time(), process.pid))
