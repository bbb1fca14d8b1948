"""The enclave behind its socket: in its sealed process, and against a host that sends what no host of ours would."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import re
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from in_process import EnclaveCalls

import odp
from odp.algorithms.implicit.config import ImplicitData, ImplicitDPAM
from odp.crypto import SigningKey
from odp.crypto.hpke import DecryptionError
from odp.errors import ConfigurationError, PrivacyError, Refusal, StateError
from odp.models.matrix_factorization import MatrixFactorization
from odp.privacy.ledger_entry import ReleaseState
from odp.protocol.terms import Cohort, UserLevelDP
from odp.signed.task import open_task
from odp.tasks.task import Task
from odp.trust.enclave import launcher
from odp.trust.enclave.channel import Client, Connection, Encoded
from odp.trust.enclave.enclave_start import answered, start
from odp.trust.enclave.evidence import Claims, read_token
from odp.trust.enclave.image.built import packages_of
from odp.trust.enclave.measurement import AGGREGATOR_ENTRY, DISTRIBUTOR_ENTRY, PLATFORM_ENTRY, measure
from odp.trust.enclave.policy import EnclavePolicy
from odp.v1 import aggregator_enclave_pb2, aggregator_pb2, common_pb2, enclave_pb2
from odp.v1.aggregator_enclave_pb2 import AggregatorEnclaveRequest
from trusted_aggregator.boundary import wire
from trusted_aggregator.boundary.calls import AggregatorCalls
from trusted_aggregator.boundary.interface import SealedContribution, Status
from trusted_aggregator.enclave import process as enclave_process
from trusted_aggregator.host.remote import restore
from trusted_aggregator.state.records import release_key

SECONDS = 60.0


class Remote:
    """A world whose enclave is at the other end of ``channel``; it starts from what the world's host stored."""

    def __init__(self, world, channel):
        self.world = world
        self.ended = []
        connection = Connection(channel)
        world.sealed_keys = start(connection, getattr(world, "remote_keys", None))
        world.remote_keys = world.sealed_keys
        world.persist(restore(connection, world.records, lambda task, round: world.rows.get((task, round), [])))
        self.client = Client(connection, AggregatorCalls.interface.reply, ended=self.ended.append)
        world.core = EnclaveCalls(self.client)
        token = world.core.evidence(bytes(32)).token
        self.signing_key = Claims.from_json(read_token(token).claims).signing_key

    def sealed(self, device, number=0):
        given = self.world.contribution(device, number)
        return self.world.seal(given.SerializeToString(), number)

    def submit(self, sealed, number=0):
        world = self.world
        request = aggregator_pb2.SubmitRequest(task_sha256=world.task_sha256, round=number, sealed_contribution=sealed)
        (refused,) = world.core.submit_batch([wire.sealed_of(request)])
        if refused is None:
            world.rows.setdefault((world.task_sha256, number), []).append(sealed)
        return None if refused is None else refused.refusal

    def fill(self, count, number=0):
        for device in range(count):
            assert self.submit(self.sealed(device, number), number) is None

    def close(self):
        self.client.close()


@pytest.fixture
def inside():
    """Starts enclaves of a world in threads of this process, one after the other."""
    opened = []

    def begin(world):
        if opened:
            opened[-1].close()
        host, enclave = socket.socketpair()
        threading.Thread(target=enclave_process.run, args=(enclave, world.guest()), daemon=True).start()
        opened.append(Remote(world, host))
        return opened[-1]

    yield begin
    for remote in opened:
        remote.close()


def test_a_round_over_the_socket_with_a_restart_at_every_step(make_world, inside):
    world = make_world(minimum=3)
    remote = inside(world)
    world.open()
    remote.fill(2)
    remote = inside(world)
    assert remote.submit(remote.sealed(1)) is Refusal.ALREADY_CONTRIBUTED
    with pytest.raises(PrivacyError, match="at least 3"):
        world.charge()
    assert remote.submit(remote.sealed(2)) is None
    assert world.core.round_state(world.task_sha256, 0).contributions == 3
    charged = world.charge()
    world.persist(charged.writes)
    inside(world)
    assert world.core.round_states()[0].status is Status.CHARGED
    world.persist(world.seal_release())
    assert world.core.round_states()[0].status is Status.SEALED
    inside(world)
    assert world.core.round_states() == []
    assert world.core.round_state(world.task_sha256, 0).status is Status.RELEASED
    signed = world.release()
    inside(world)
    assert world.close() == signed
    assert world.charges() == 1
    assert world.core.ledger(bytes(32)) is None
    assert world.core.round_state(bytes(32), 0) is None


def test_charters_ends_and_forgotten_tasks_pass_over_the_socket(make_world, inside):
    world = make_world(minimum=3)
    remote = inside(world)
    assert world.core.charter("nobody's") is None
    assert world.core.charter(world.population) == world.charter
    world.open()
    remote.fill(3)
    world.persist(world.core.forget(world.task_sha256))
    assert world.core.round_states() == []
    world.open()
    other = SigningKey.generate()
    signed = world.other_owner(world.developer, other)
    world.settle(world.core.set_charter(signed))
    assert world.core.charter(world.population) == signed
    world.settle(world.abandon(other))
    assert remote.submit(remote.sealed(5)) is Refusal.TASK_ABANDONED
    inside(world)
    assert remote.world.core.sealed_bytes(world.task_sha256, 0) is Refusal.TASK_ABANDONED


def test_many_contributions_and_large_records_come_back_in_pages(make_world, inside, monkeypatch):
    monkeypatch.setattr("trusted_aggregator.host.remote._PAGE_BYTES", 300)
    world = make_world(minimum=3)
    remote = inside(world)
    world.open()
    remote.fill(20)
    inside(world)
    assert world.core.round_state(world.task_sha256, 0).contributions == 20


def test_a_void_round_is_told_to_the_host_before_anything_else(make_world, inside):
    world = make_world(minimum=3)
    remote = inside(world)
    world.open()
    remote.fill(3)
    world.settle(world.charge().writes)
    world.rows.clear()
    inside(world)
    assert world.core.round_states()[0].status is Status.VOID
    assert world.ledger().entries[-1].state is ReleaseState.VOID


@pytest.mark.parametrize("accumulation", ["oblivious", "direct"])
@pytest.mark.parametrize("bins", [40, 300_000])
def test_statistics_over_the_socket_small_and_large_with_a_restart(make_statistics, inside, bins, accumulation):
    policy = EnclavePolicy(role="aggregator", minimum_cohort=3, accumulation=accumulation)
    world = make_statistics(bins, policy=policy)
    remote = inside(world)
    assert world.core.sealed_bytes(world.task_sha256, 0) is Refusal.WRONG_TASK
    world.open()
    assert world.core.sealed_bytes(world.task_sha256, 0) == len(remote.sealed(0))
    assert world.core.sealed_bytes(world.task_sha256, 1) is Refusal.WRONG_ROUND
    remote.fill(3)
    remote = inside(world)
    assert remote.submit(remote.sealed(1)) is Refusal.ALREADY_CONTRIBUTED
    assert remote.submit(remote.sealed(3)) is None
    assert world.learn(world.close()).contributions == 4
    assert world.core.sealed_bytes(world.task_sha256, 0) is Refusal.ROUND_CLOSED


def test_a_large_contribution_opens_under_the_policy_of_its_device_only(make_statistics, inside):
    world = make_statistics(300_000)
    remote = inside(world)
    world.open()
    verified = world.policy
    world.policy = dataclasses.replace(verified, minimum_cohort=4)
    other = remote.sealed(1)
    world.policy = verified
    assert remote.submit(other) is Refusal.MALFORMED
    assert remote.submit(remote.sealed(1)) is None


class TestHostile:
    """The host is the attacker: it may harm itself, and gets no more than an answer of the closed set."""

    @pytest.fixture
    def raw(self, small):
        host, enclave = socket.socketpair()
        thread = threading.Thread(target=enclave_process.run, args=(enclave, small.guest()), daemon=True)
        thread.start()
        connection = Connection(host)
        yield connection
        connection.close()
        thread.join(SECONDS)
        assert not thread.is_alive()

    def test_calls_before_the_start_are_refused_and_end_the_enclave(self, raw):
        raw.send(1, AggregatorEnclaveRequest(rounds=aggregator_enclave_pb2.AskRounds()))
        with pytest.raises(StateError, match="'start'"):
            answered(raw)

    def test_keys_of_another_enclave_are_refused_a_few_times(self, raw):
        for _ in range(3):
            with pytest.raises(DecryptionError):
                start(raw, bytes(100))
        with pytest.raises(StateError, match="repeatedly"):
            answered(raw)

    @pytest.mark.parametrize("key", ["population/x", "nothing", "", "round/\x00", "task/" + "é" * 99])
    def test_a_record_that_it_did_not_seal_is_refused(self, raw, key):
        start(raw, None)
        with pytest.raises(StateError, match="was changed"):
            restore(raw, {key: bytes(50)}, lambda task, round: [])

    def test_a_start_that_is_broken_off_leaves_nothing_behind(self, raw):
        start(raw, None)
        raw.send(0, AggregatorEnclaveRequest(records=aggregator_enclave_pb2.SealedRecords()))

    def test_orders_keys_and_batches_of_any_form_get_an_answer(self, raw):
        start(raw, None)
        restore(raw, {}, lambda task, round: [])
        client = Client(raw, AggregatorCalls.interface.reply, ended=lambda error: None)
        core = EnclaveCalls(client)
        for order in (b"", b"\xff" * 10, bytes(1000)):
            for call in (lambda order=order: core.charge(order, b""), lambda order=order: core.seal_release(order)):
                with pytest.raises(ConfigurationError):
                    call()
        with pytest.raises(ConfigurationError, match="nonce"):
            core.evidence(b"short")
        assert core.submit_batch([]) == []
        odd = SealedContribution(b"?", 2**32 - 1, b"")
        assert core.sealed_bytes(b"?", 2**32 - 1) is Refusal.WRONG_TASK
        assert core.submit_batch([odd] * 3) == [(Refusal.WRONG_TASK, b"")] * 3
        with pytest.raises(ConfigurationError, match="at most 4096"):
            core.submit_batch([odd] * 5000)
        long = SealedContribution(b"?", 2**32 - 1, bytes(2**20 + 1), bytes(32))
        assert core.submit_batch([long, odd, long]) == [(Refusal.WRONG_TASK, b"")] * 3
        call = AggregatorEnclaveRequest.SUBMIT_FIELD_NUMBER << 3 | 2
        for pieces in ([bytes([call]), bytes(2**20)], [bytes([call, 1]), bytes(2**20)], [bytes([call]) * (2**20 + 1)]):
            with pytest.raises(ConfigurationError, match="not a batch of contributions"):
                client.call(Encoded("submit", pieces))
        for late in (AggregatorEnclaveRequest(start=enclave_pb2.EnclaveStart()), AggregatorEnclaveRequest()):
            with pytest.raises(ConfigurationError, match="no such request"):
                client.call(late)
        client.close()

    def test_the_host_takes_no_answer_of_another_length(self):
        class Liar:
            def call(self, request):
                return aggregator_enclave_pb2.AggregatorEnclaveReply(
                    submitted=aggregator_enclave_pb2.SubmittedBatch(refusals=b"\0\0")
                )

        with pytest.raises(StateError, match="another number"):
            EnclaveCalls(Liar()).submit_batch([SealedContribution(b"", 0, b"")])


@pytest.fixture(scope="module")
def image():
    """Names of everything that can be imported in the enclave's process."""
    parts = measure(AGGREGATOR_ENTRY).of_kind("module", "package", "extension")
    return frozenset(part.name for part in parts)


#: Modules of these names are what parties outside of enclaves run, in each package of algorithms and models.
OUTSIDE = {
    "bins", "client", "diagnostics", "gradient_server", "item_files", "population", "public_matrix", "report",
    "results", "server", "task", "training", "userside", "warm_start",
}  # fmt: skip


def test_of_what_its_code_imports_late_an_enclave_has_all_that_it_runs(image):
    """The rest is for simulations, apps, servers, devices, and developers who make a task or its matrix."""
    late = set()
    for name in image:
        if name.partition(".")[0] in packages_of(AGGREGATOR_ENTRY):
            source = Path(importlib.util.find_spec(name).origin).read_text()
            late |= {imported for imported in _imported_late(ast.parse(source)) if imported not in image}
    algorithms = {name for name in late if name.startswith(("odp.algorithms.", "odp.models."))}
    assert {name.rpartition(".")[2] for name in algorithms} == OUTSIDE
    files = {"odp.transport", "odp._system.files.settings_file", "odp._system.files.state_folder"}
    simulated = {"odp.datasets.examples", "odp.privacy.adaptive_clip", "threadpoolctl"}
    developers = {"odp._system.own_packages", "odp.protocol.catalogues.catalogue", "odp.privacy.reconstruction"}
    assert {name for name in late - algorithms if name.partition(".")[0] != "scipy"} == files | simulated | developers


#: What no image of an enclave, nor of the platform, has: what other parties run, and what shows, stores or connects.
FOREIGN = re.compile(
    r"(server|device_runtime|examples)(\.|$)|odp\.(cli|research|pictures|dashboard|datasets|operations|serving|evaluation|"
    r"services|tasks|trainings)(\.|$)|odp\.algorithms\..*\.(config|server|client|task|population|experiment)$|"
    r"(grpc|sqlalchemy|typer|rich|numba|llvmlite|gmpy2|_hashlib|_ssl|matplotlib|tensorflow|keras)(\.|$)"
)


@pytest.mark.parametrize("entry", [AGGREGATOR_ENTRY, DISTRIBUTOR_ENTRY, PLATFORM_ENTRY])
def test_an_image_has_no_module_of_other_parties_and_no_network_database_or_console(entry):
    names = [part.name for part in measure(entry).of_kind("module", "package", "extension")]
    assert [name for name in names if FOREIGN.match(name)] == []
    assert {"odp.errors", "numpy" if entry != PLATFORM_ENTRY else "odp.trust.enclave.platform"} <= set(names)


def lines_of(module):
    """Lines of a module's file."""
    roots = [Path(path) for path in (odp.__file__, np.__file__, json.__file__)]
    for root in (path.parents[1] for path in roots):
        place = root.joinpath(*module.split("."))
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return len(file.read_text(errors="replace").splitlines())
    return 0


def test_the_trusted_base_stays_small_enough_to_be_read(image):
    lines = {"base": 0, "code": 0}
    for part in measure(AGGREGATOR_ENTRY).of_kind("module", "package"):
        lines[part.component] += lines_of(part.name)
    assert lines["code"] <= 35_000
    assert sum(lines.values()) <= 300_000


def _imported_late(tree):
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    yield from (alias.name for alias in node.names)
                elif isinstance(node, ast.ImportFrom):
                    yield node.module
                    if node.module.partition(".")[0] == "scipy":
                        yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.processes
@pytest.mark.parametrize(
    "kind", ["ratings", "implicit", "sampled ratings", "sampled implicit", "statistics", "large statistics"]
)
@pytest.mark.slow
def test_every_round_of_every_algorithm_runs_where_no_file_can_be_opened(make_world, make_statistics, kind, tmp_path):
    """What an algorithm would load late fails here: nothing can be loaded in the sealed process."""
    bins = {"statistics": 40, "large statistics": 300_000}.get(kind)
    world = make_world(minimum=3) if bins is None else make_statistics(bins)
    if bins is None:
        definition = _events(world.population).definition() if "implicit" in kind else open_task(world.task)
        if "sampled" in kind:
            terms = common_pb2.EnclavePoisson(probability=0.5, most_contributions=8, cap=8)
            definition.cohort.enclave_poisson.CopyFrom(terms)
        world.adopt(world.sign(definition))
    policy = world.policy.to_bytes()
    with launcher.launch(platform_folder=tmp_path / "platform", entry=AGGREGATOR_ENTRY, policy=policy) as enclave:
        # Another chip: what the world's own enclave sealed does not open here.
        world.records.clear()
        remote = Remote(world, enclave.channel)
        world.settle(world.core.set_charter(world.charter))
        for number in range(len(world.algorithm.planned_releases())):
            world.open(number)
            remote.fill(4, number)
            release = world.learn(world.close(number))
            assert release.contributions == 4
            assert remote.submit(remote.sealed(7, number), number) is Refusal.ROUND_CLOSED
        assert release_key(world.task_sha256, number) in world.records
        assert world.charges() == number + 1
        assert remote.ended == []
        remote.close()


def _events(population):
    return Task(
        name="events", model=MatrixFactorization(items=12, rank=2), data=ImplicitData(), population=population,
        privacy=UserLevelDP(epsilon=8.0, delta=1e-6, max_items_per_user=4), training=ImplicitDPAM(steps=1),
        cohort=Cohort(minimum=3, goal=3),
    )  # fmt: skip
