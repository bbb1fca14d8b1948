"""Hostile definitions, models, answers and logs, at every party that opens them: accepted and computable, or refused.

An error that no check foresaw is a refusal, too; the fixture of ``tests/conftest.py`` then fails the test, which has
found a check that is missing.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from combinations.recording import blank_matrix
from security import hostile_definitions as hostile
from security.computing import compute
from trust.log.world import CHARTER, DEVELOPER, LogWorld

import odp
from device_runtime.tasks.answers import AnswerReader
from device_runtime.tasks.assignment import open_model
from odp.algorithms.cohorts import MOST_BLOCKS, MOST_SAMPLED_BLOCKS
from odp.algorithms.computing_time import REFERENCE_SECONDS, reference_seconds
from odp.algorithms.dpftrl.query import MOST_TREE_ROUNDS
from odp.algorithms.registry import algorithm_for
from odp.crypto import domains
from odp.errors import BudgetExceeded, ConfigurationError, OdpError, OutOfResources
from odp.privacy import accounting, composition
from odp.privacy.matrix import encoding
from odp.refusing import UnforeseenRefusal, refusing
from odp.signed.task import open_manifest, open_task, sign_manifest, sign_task, task_sha256
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.log.entries import TaskEntry, decode
from odp.trust.log.records import Records
from odp.trust.log.sources import AuditFailure
from odp.v1 import common_pb2, server_pb2
from server.servicer import checked_task
from trusted_aggregator.enclave.opened_task import OpenedTask

#: A party that opens a signed task. Raises what it refuses the task by.
Opens = Callable[[common_pb2.SignedTask], object]

_few = hypothesis.settings(max_examples=150, derandomize=True, database=None)


def at_a_device(signed: common_pb2.SignedTask) -> object:
    definition = common_pb2.TaskDefinition.FromString(signed.definition)
    try:
        algorithm = algorithm_for(definition)
        tables = [
            common_pb2.TableManifest(name=one.name, rows=one.rows, width=one.width, sha256=bytes(32), keyed=one.keyed)
            for one in algorithm.tables
        ]
    except (OdpError, ArithmeticError, ValueError):
        tables = []  # the definition is refused before its model is looked at
    manifest = sign_manifest(common_pb2.ModelManifest(task_sha256=task_sha256(signed), tables=tables), hostile.KEY)
    return open_model(signed, manifest)


def at_a_local_reader(signed: common_pb2.SignedTask) -> object:
    return AnswerReader("people").open(
        server_pb2.CheckInResponse(local=server_pb2.LocalAssignment(task=signed, charter=CHARTER))
    )


def at_the_enclave(signed: common_pb2.SignedTask) -> object:
    return OpenedTask.open(signed)


def at_the_server(signed: common_pb2.SignedTask) -> object:
    definition = common_pb2.TaskDefinition.FromString(signed.definition)
    try:
        features = blank_matrix(definition)
    except (OdpError, ArithmeticError, ValueError):
        features = None
    data = b"" if features is None else features.tobytes()
    return checked_task(server_pb2.SubmitTaskRequest(definition=definition, item_features=data), hostile.KEY)


@pytest.fixture(scope="module")
def at_the_audit(tmp_path_factory: pytest.TempPathFactory) -> Opens:
    world = LogWorld(tmp_path_factory.mktemp("log"))
    pinned = ReferenceValues(
        roots=(), image_digests={"aggregator": ("sha384:" + "a" * 96,)}, policy_sha256={"aggregator": ("b" * 64,)},
        allow_emulated=True, log=world.policy(),
    )  # fmt: skip
    before = [decode(world.log.entry(number)) for number in range(world.log.size - 2)]  # without the task and its model
    world.close()

    def judge(signed: common_pb2.SignedTask) -> None:
        records = Records(pinned, world.policy())
        for number, entry in enumerate(before):
            records.add(number, entry)
        try:
            records.add(len(before), TaskEntry.of(signed))
            records.finish()
        except AuditFailure as failure:
            if not failure.record.startswith(f"entry {len(before)} (task"):
                raise ValueError(f"the audit names another record: {failure.record}") from failure
            raise

    return judge


@functools.cache
def _changes(kind: int) -> tuple[tuple[str, hostile.Change], ...]:
    return tuple(hostile.changes(hostile.kinds()[kind]))


@pytest.mark.slow
def test_the_definitions_that_are_changed_are_accepted(at_the_audit: Opens) -> None:
    assert hostile.KEY.public == DEVELOPER.public
    for definition in hostile.kinds():
        signed, has_rounds = hostile.signed(definition), algorithm_for(definition).has_rounds
        for opens in (at_a_device, at_the_enclave) if has_rounds else (at_a_local_reader,):
            opens(signed)
        for opens in (at_the_server, at_the_audit):
            opens(signed)
    assert sum(map(compute, hostile.kinds())) >= len(hostile.kinds()) - 3, "few are too large to be computed here"


@_few
@hypothesis.given(data=st.data())
@pytest.mark.slow
def test_r366_a_definition_with_hostile_fields_is_refused_by_name_or_accepted_everywhere(
    at_the_audit: Opens, data: st.DataObject
) -> None:
    kind = data.draw(st.integers(0, len(hostile.kinds()) - 1))
    chosen = data.draw(st.lists(st.integers(0, len(_changes(kind)) - 1), min_size=1, max_size=3))
    hypothesis.note([_changes(kind)[one][0] for one in chosen])
    definition = hostile.changed(hostile.kinds()[kind], *(_changes(kind)[one][1] for one in chosen))
    if definition is not None:
        _judge(definition, at_the_audit)


def _judge(definition: common_pb2.TaskDefinition, at_the_audit: Opens) -> None:
    signed, accepting = hostile.signed(definition), set()
    for opens in (at_a_device, at_a_local_reader, at_the_enclave, at_the_server, at_the_audit):
        with contextlib.suppress(OdpError):
            opens(signed)
            accepting.add(opens)
    # A party may have limits of its own. What devices contribute to can be computed by all.
    if at_a_local_reader in accepting or accepting >= {at_a_device, at_the_enclave}:
        compute(definition)


@pytest.mark.slow
def test_r366_no_extreme_number_of_any_training_makes_a_party_fail(at_the_audit: Opens) -> None:
    """Once, clips, rates, bounds and noises of these sizes raised what no party expected."""
    judged: set[str] = set()
    for kind, definition in enumerate(hostile.kinds()):
        training = str(definition.WhichOneof("training"))
        for name, change in _changes(kind):
            field, _, value = name.partition("=")
            if field.startswith(f"{training}.") and value in ("5e-324", "1e-12", "1000000000.0", "1.7e+308"):
                copy = hostile.changed(definition, change)
                if copy is not None and name not in judged:
                    judged.add(name)
                    _judge(copy, at_the_audit)
    assert len(judged) > 100


@pytest.mark.proof
@pytest.mark.parametrize("kind", range(len(hostile.kinds())))
def test_r366_every_field_of_every_kind_of_task_with_every_special_value(kind: int, at_the_audit: Opens) -> None:
    for _name, change in _changes(kind)[kind % 5 :: 5]:  # a fifth of them, in seconds
        definition = hostile.changed(hostile.kinds()[kind], change)
        if definition is not None:
            _judge(definition, at_the_audit)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 5e-324, 2.2e-308, 1.7e308, -1e61])
def test_r367_a_number_that_no_field_can_mean_is_refused_in_fields_that_are_not_read(value: float) -> None:
    biases = odp.Task(
        name="biases", model=odp.MatrixFactorization(items=12, rank=0), data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=4.0, delta=1e-6, max_items_per_user=4), training=odp.DPAM(),
        cohort=odp.Cohort(minimum=2, goal=3),
    ).definition()  # fmt: skip
    biases.developer_key = hostile.KEY.public
    open_task(hostile.signed(biases))
    for name in ("row_clip", "gram_noise", "user_ridge"):  # of rounds of factors, which the task has none of
        unused = common_pb2.TaskDefinition()
        unused.CopyFrom(biases)
        setattr(unused.dpam, name, value)
        with pytest.raises(ConfigurationError, match=re.escape(f"dpam.{name}={value!r} of the task definition")):
            open_task(hostile.signed(unused))


@pytest.mark.unforeseen
def test_r365_an_error_that_no_check_foresaw_is_a_refusal_without_its_text() -> None:
    def computes() -> None:
        raise ZeroDivisionError("private 4.5")

    with (
        pytest.raises(UnforeseenRefusal, match="the model was refused: it raises ZeroDivisionError in computes:") as it,
        refusing("model"),
    ):
        computes()
    assert "private" not in str(it.value)
    with pytest.raises(AuditFailure, match="passes"), refusing("log"):
        raise AuditFailure("entry 1", "passes through")
    with pytest.raises(KeyboardInterrupt), refusing("model"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(), RuntimeError("can't start new thread"), OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENOSPC, "No space left on device"), BlockingIOError(errno.EAGAIN, "Try again"),
    ],
)  # fmt: skip
def test_r393_a_machine_that_is_short_of_something_refuses_nothing(error: Exception) -> None:
    with pytest.raises(OutOfResources, match="this machine could not open the model"), refusing("model"):
        raise error


@pytest.mark.unforeseen
@pytest.mark.parametrize(
    "error", [OSError("illegal IP address string"), OSError(errno.EOVERFLOW, "no such date"), RuntimeError("other")]
)
def test_r393_an_error_that_the_input_makes_stays_a_refusal(error: Exception) -> None:
    with pytest.raises(UnforeseenRefusal), refusing("model"):
        raise error


@pytest.mark.unforeseen
@pytest.mark.parametrize("at_party", [at_a_device, at_a_local_reader, at_the_enclave, at_the_server])
def test_r365_every_party_refuses_a_task_whatever_its_algorithm_raises(
    at_party: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [one for one in hostile.kinds() if algorithm_for(one).has_rounds is not (at_party is at_a_local_reader)]
    signed = hostile.signed(kinds[0])

    def broken(self: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(algorithm_for(kinds[0])), "check_for_devices", broken)
    with pytest.raises(UnforeseenRefusal, match="ZeroDivisionError in broken"):
        at_party(signed)


@pytest.mark.unforeseen
@pytest.mark.parametrize("derived", ["queries", "largest"])
def test_r365_the_enclave_refuses_a_task_whatever_its_rounds_raise(
    derived: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no device and no server works out: once, its developer read INTERNAL."""
    kinds = [one for one in hostile.kinds() if algorithm_for(one).has_rounds]

    def broken(self: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(OpenedTask, derived, property(broken))
    with pytest.raises(UnforeseenRefusal, match="ZeroDivisionError in broken"):
        at_the_enclave(hostile.signed(kinds[0]))


def test_a_manifest_with_hostile_fields_is_refused_or_accepted() -> None:
    task = hostile.signed(hostile.kinds()[0])
    tables = [common_pb2.TableManifest(name=name, rows=2, width=3, sha256=bytes(32)) for name in ("a", "b")]
    manifest = common_pb2.ModelManifest(task_sha256=task_sha256(task), tables=tables)
    for _name, change in hostile.changes(manifest):
        copy = common_pb2.ModelManifest()
        copy.CopyFrom(manifest)
        try:
            change(copy)
        except (ValueError, TypeError):
            continue
        data = copy.SerializeToString()
        signed = common_pb2.SignedManifest(manifest=data, signature=hostile.KEY.sign(domains.MANIFEST, data))
        with contextlib.suppress(OdpError):
            open_manifest(signed, task=task, developer_key=hostile.KEY.public)


def _judged_largest() -> Iterator[str]:
    """What it takes to judge the largest definitions of each kind that exceeds what R368 allows, line by line."""
    parties = (at_the_enclave, at_the_server)
    for definition in hostile.kinds():
        for opens in parties:
            opens(hostile.signed(definition)) if algorithm_for(definition).has_rounds else open_task(
                hostile.signed(definition)
            )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, definition in enumerate(hostile.kinds()):
        # The server's checks are the enclave's, and the local reader's are the device's, but for what follows them.
        for last_first, opening in ((False, (at_a_device, at_the_server)), (True, (at_a_local_reader, at_the_enclave))):
            signed = hostile.signed(hostile.largest(definition, last_first=last_first))
            for opens in opening:
                start = resource.getrusage(resource.RUSAGE_SELF).ru_utime
                with contextlib.suppress(OdpError):
                    opens(signed)
                took = resource.getrusage(resource.RUSAGE_SELF).ru_utime - start
                if took > 2.0:
                    yield f"{opens.__name__}: {took:.1f} s for kind {number}, {definition.WhichOneof('training')}"
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            if grown > 100:
                yield f"{grown:.0f} MiB more after kind {number}, {definition.WhichOneof('training')}"
                return


# The definitions that take longest are judged below in CI: sampled rounds, streams with masks and trees.
@pytest.mark.proof
@pytest.mark.slow
def test_r368_the_largest_definitions_take_two_seconds_and_100_mib_to_judge() -> None:
    """In a process of its own, whose memory shows the most that was ever in use."""
    tests = Path(__file__).resolve().parents[1]
    code = "from security.test_refusals import _judged_largest; print(*_judged_largest(), sep='\\n')"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600, cwd=tests.parent,
        env={"PYTHONPATH": ":".join([*sys.path, str(tests)]), "OPENBLAS_NUM_THREADS": "1", "PATH": ""},
    )  # fmt: skip
    assert run.stdout.strip() == ""


@pytest.mark.slow
@pytest.mark.parametrize(("most", "separation"), [(8, 1), (16, 100), (32, 60)])
def test_r423_the_longest_trees_take_two_seconds_to_judge(most: int, separation: int) -> None:
    """One is judged in vain by the exact way before its bound; the other has the costliest bound that is legal."""
    kinds = [one for one in hostile.kinds() if one.HasField("dpftrl") and one.dpftrl.stream.HasField("tree")]
    definition = hostile.changed(kinds[0])
    assert definition is not None
    definition.dpftrl.blocks[0].rounds = MOST_TREE_ROUNDS
    definition.dpftrl.stream.most, definition.dpftrl.stream.separation = most, separation
    signed, slowness, start = hostile.signed(definition), _slowness(), time.thread_time()
    at_the_enclave(signed)
    assert time.thread_time() - start < 2.0 * max(slowness, _slowness())


def _slowness() -> float:
    """At least 1: how much longer computations take now than on a quiet machine, in processor time too."""
    return max(1.0, reference_seconds(time.thread_time) / REFERENCE_SECONDS)


def _sampled(schedule: list[tuple[int, int]]) -> common_pb2.TaskDefinition:
    """A sampled training by a schedule of cohorts."""
    return odp.Task(
        name="kinds", model=odp.Glm("multinomial", features=4, classes=3),
        data=odp.Examples({"x": odp.Tensor((4,), -1, 1)}, label="kind"),
        privacy=odp.UserLevelDP(epsilon=100.0, delta=1e-5),
        training=odp.DPFedAvg(
            rounds=sum(rounds for rounds, _ in schedule), noise_multiplier=5.0, cohort_schedule=schedule
        ),
        cohort=odp.Cohort(minimum=10, goal=400, sampling="enclave_poisson", most_contributions=1000),
    ).definition()  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("beyond", [-0.001, 0.01, 0.5])
@pytest.mark.parametrize(("blocks", "rounds"), [(1, 10_000), (MOST_SAMPLED_BLOCKS, 80)])
def test_r368_sampled_rounds_take_two_seconds_to_judge_wherever_the_budget_is(
    blocks: int, rounds: int, beyond: float, make_world: Callable[..., Any]
) -> None:
    """Each different round has an epsilon of its own to compute, in ten times the time where it nearly fits."""
    world = make_world(minimum=10)
    definition = _sampled([(rounds, 10 + number) for number in range(blocks)])
    definition.population, definition.developer_key = "new", world.developer.public
    task = OpenedTask.open(sign_task(definition, world.developer))
    events = Counter(event for number in range(task.planned) for event in task.charges(number))
    spent = accounting.epsilon(events, delta=1e-5, interval=composition.COARSE_INTERVAL)
    definition.privacy.epsilon = spent - beyond

    def seconds() -> float:
        for cache in (composition._composed, composition._one_round):
            cache.cache_clear()
        start = time.thread_time()
        with pytest.raises(BudgetExceeded, match="was not started") if beyond > 0 else contextlib.nullcontext():
            world.core.check_task(sign_task(definition, world.developer))
        return time.thread_time() - start

    # Other programs on the same processors make it slower at times, and never faster.
    assert any(seconds() < 2.0 * _slowness() for _ in range(3))


def test_r368_more_different_sampled_rounds_are_refused_before_an_epsilon_is_computed() -> None:
    definition = _sampled([(1, 10 + number) for number in range(MOST_SAMPLED_BLOCKS)])
    definition.population, definition.developer_key = "people", hostile.KEY.public
    open_task(hostile.signed(definition))
    last, block = definition.cohort.schedule[-1], definition.fedavg.blocks[-1]
    for number in range(MOST_BLOCKS - MOST_SAMPLED_BLOCKS):
        definition.cohort.schedule.add(
            rounds=1, goal=last.goal, probability=last.probability - number / 1e5, cap=last.cap
        )
        definition.fedavg.blocks.add().CopyFrom(block)
    for opens in (at_a_device, at_the_enclave, at_the_server):
        with pytest.raises(ConfigurationError, match=f"at most {MOST_SAMPLED_BLOCKS} different rounds"):
            opens(hostile.signed(definition))


def test_r368_columns_that_are_alike_are_one_number_in_memory() -> None:
    """A release of 2^24 items took 128 MiB, several times over, before anybody contributed."""
    task = odp.Task(
        name="films", model=odp.MatrixFactorization(items=2**22, rank=0), data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=4.0, delta=1e-6, max_items_per_user=5), training=odp.DPAM(),
        cohort=odp.Cohort(minimum=2, goal=3),
    )  # fmt: skip
    for releases in algorithm_for(task.definition()).planned_releases():
        for release in releases:
            assert release.column_std.shape == (2**22,)
            assert release.column_std.strides == (0,)


def test_r368_the_longest_stream_with_masks_is_judged_without_its_past_sums() -> None:
    """Its matrix was hashed for each of 10,000 rounds, and half a gigabyte of past sums was made for its length."""
    kinds = [one for one in hostile.kinds() if one.dpftrl.stream.HasField("banded") and one.cohort.aggregation]
    definition = hostile.changed(kinds[0])
    assert definition is not None
    training = definition.dpftrl
    training.blocks[0].rounds = 10_000
    training.stream.banded.coefficients[:] = [2**10, *[1] * 511]
    training.stream.most, training.stream.separation = 10, 512
    training.blocks[0].dense.grid_bits, training.blocks[0].dense.noise_std = 8, 1.0
    signed = hostile.signed(definition)
    hashed = 0
    with pytest.MonkeyPatch.context() as patch:
        digest_of = encoding.digest_of

        def counted(*given: Any) -> bytes:
            nonlocal hashed
            hashed += 1
            return digest_of(*given)

        patch.setattr(encoding, "digest_of", counted)
        task = OpenedTask.open(signed)
    assert task.planned == 10_000
    assert task.stream_bytes > 511 * 4 * 4
    assert hashed <= 1
