"""The fixed time of a task: a cost that grows with every cap, five steps, and a refusal that says what would fit."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import HealthCheck, given, settings, strategies as st
from task_combinations import COMBINATIONS, Combination

import odp
from odp.algorithms import computing_time
from odp.algorithms.computing_time import (
    SAFETY,
    Speed,
    fixed_seconds,
    keys_seconds,
    require_fast_enough,
    require_payable,
    with_fixed_time,
    worst_case_bytes,
    worst_case_seconds,
)
from odp.algorithms.draw_and_discard.features import LocalFeatures
from odp.algorithms.registry import TABLE, algorithm_for, training_of
from odp.crypto import domains
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, PrivacyError
from odp.models.computing_cost import MOST_BYTES, ComputingCost, Product
from odp.protocol.terms import STEPS
from odp.signed.task import open_task, sign_task
from odp.v1 import common_pb2

HELPER = X25519PrivateKey.from_private_bytes(bytes(31) + b"\x40").public_key().public_bytes_raw().hex()
KEY = SigningKey.generate()
PRIVACY = odp.UserLevelDP(epsilon=4.0, delta=1e-6)
OFFERED = [one for one in COMBINATIONS if one.is_distinct]
#: Fields that bound what a device computes, wherever they stand in a definition.
CAPS = frozenset({
    "most_events", "most_examples", "epochs", "max_items_per_user", "slices_per_device", "prefixes", "features",
    "classes", "rank",
})  # fmt: skip


def cohort(round_seconds: int = 3600) -> odp.Cohort:
    return odp.Cohort(minimum=100, goal=1000, round_seconds=round_seconds)


def training(features: int = 10, *, classes: int = 1, round_seconds: int = 3600, **work: Any) -> odp.Task:
    model = odp.Glm("logistic", features) if classes == 1 else odp.Glm("multinomial", features, classes)
    return odp.Task(
        name="clicks", model=model, data=odp.Examples({"x": odp.Tensor((features,), 0, 1)}), privacy=PRIVACY,
        cohort=cohort(round_seconds), training=odp.DPFedAvg(rounds=2, **work),
    )  # fmt: skip


def local_tasks() -> list[common_pb2.TaskDefinition]:
    """Those without rounds: combinations have none of them."""
    words = odp.Events(service="keyboard", type="typed", item="word")
    return [
        odp.Statistics(
            name="t", queries={"a": odp.Histogram(bins=4)}, trust="local", cohort=cohort(), privacy=PRIVACY
        ).definition(),
        odp.HeavyHitters(
            name="t", events=words, alphabet="ab", length=2, trust="local", cohort=cohort(), privacy=PRIVACY
        ).definition(),
        odp.DrawAndDiscard(name="t", features={"x": odp.Number(size=9)}, epsilon=2.0, instances=3).definition(),
    ]


@functools.cache
def every_kind() -> dict[str, common_pb2.TaskDefinition]:
    found: dict[str, common_pb2.TaskDefinition] = {}
    for one in OFFERED:
        definition = one.task(HELPER).definition()
        found.setdefault(str(training_of(definition)), definition)
    question = dataclasses.replace(training(), count_usable=odp.CountUsable(share=0.5)).usable_question()
    assert question is not None
    return found | {str(training_of(one)): one for one in (*local_tasks(), question.definition())}


def test_every_algorithm_states_a_cost() -> None:
    assert set(every_kind()) == set(TABLE)
    for name, definition in every_kind().items():
        cost = algorithm_for(definition).computing_cost
        assert 0 < cost.seconds < STEPS[-1], name
        assert 0 < cost.bytes < MOST_BYTES, name


@pytest.mark.parametrize("combination", OFFERED, ids=lambda one: one.name)
def test_every_offered_combination_has_a_step_that_is_payable(combination: Combination) -> None:
    named = with_fixed_time(combination.task(HELPER).definition())
    require_payable(named)
    assert named.computing_milliseconds / 1000 == fixed_seconds(named)
    assert fixed_seconds(named) == 0.25


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(sorted(TABLE)),
    caps=st.lists(st.integers(min_value=1, max_value=2**20), min_size=8, max_size=8),
    place=st.integers(min_value=0, max_value=7),
    factor=st.integers(min_value=2, max_value=1000),
)
def test_no_cost_falls_where_a_cap_of_any_kind_of_task_grows(
    kind: str, caps: list[int], place: int, factor: int
) -> None:
    stated = algorithm_for(every_kind()[kind]).computing_cost
    chosen = {name: caps[index % len(caps)] for index, name in enumerate(stated.caps)}
    lower = ComputingCost(chosen, stated.products, stated.memory)
    for name in list(chosen)[place % max(1, len(chosen)) :]:
        higher = ComputingCost({**chosen, name: chosen[name] * factor}, stated.products, stated.memory)
        assert higher.seconds >= lower.seconds
        assert higher.bytes >= lower.bytes


@pytest.mark.parametrize("kind", sorted(TABLE))
def test_every_cap_that_a_kind_of_task_states_is_in_its_cost(kind: str) -> None:
    """A product that is forgotten leaves a task cheap whose devices compute for minutes."""
    cost = algorithm_for(every_kind()[kind]).computing_cost
    for name in cost.caps:
        higher = dataclasses.replace(cost, caps={**cost.caps, name: 1000 * cost.caps[name]})
        assert higher.seconds > cost.seconds, name


def evaluation(epochs: int) -> odp.Evaluation:
    return odp.Evaluation(
        name="t", model=odp.Glm("logistic", 10), data=odp.Examples({"x": odp.Tensor((10,), 0, 1)}), privacy=PRIVACY,
        of=np.zeros(11, np.float32), cohort=cohort(), personal=odp.PersonalTraining(epochs=epochs, batch=1),
    )  # fmt: skip


def local_model(classes: int) -> odp.DrawAndDiscard:
    return odp.DrawAndDiscard(
        name="t", features={"x": odp.Number(size=100)}, epsilon=2.0, instances=3, family="multinomial", classes=classes
    )


def wide(training: Any) -> odp.Task:
    return odp.Task(
        name="t", model=odp.Glm("logistic", 2000), data=odp.Examples({"x": odp.Tensor((2000,), 0, 1)}),
        privacy=PRIVACY, cohort=cohort(), training=training(rounds=1, most_examples=1),
    )  # fmt: skip


def ratings(*, step: str, aggregation: str = "enclave") -> odp.Task:
    return odp.Task(
        name="t", model=odp.MatrixFactorization(items=65_536, rank=32), data=odp.RatingsData(low=1, high=5),
        privacy=PRIVACY, training=odp.DPAM(step=step, steps=2),
        cohort=dataclasses.replace(cohort(), aggregation=aggregation),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cheap", "costly", "times"),
    [
        (lambda: evaluation(1), lambda: evaluation(100), 10.0),
        (lambda: local_model(3), lambda: local_model(100), 3.0),
        (lambda: wide(odp.DPFedAvg), lambda: wide(odp.PrivateFL), 1.05),
        (lambda: ratings(step="gramian"), lambda: ratings(step="gradient"), 2.0),
        (lambda: ratings(step="gradient"), lambda: ratings(step="gradient", aggregation="masked"), 1.3),
    ],
    ids=[
        "training before an evaluation",
        "gradients of local reports",
        "randomizers of updates",
        "covariances of item rows",
        "vectors of all items",
    ],
)
def test_what_a_device_computes_beside_reading_is_in_the_cost(
    cheap: Callable[[], Any], costly: Callable[[], Any], times: float
) -> None:
    cheap_seconds, costly_seconds = (worst_case_seconds(make().definition()) for make in (cheap, costly))
    assert costly_seconds > times * cheap_seconds


def cap_fields(message: Any) -> list[tuple[Any, str]]:
    """Every field of a definition that is a cap, with the message that holds it."""
    found = []
    for field, value in message.ListFields():
        if field.name in CAPS and isinstance(value, int):
            found.append((message, field.name))
        elif field.message_type is not None:
            for one in [value] if not field.is_repeated else value:
                found += cap_fields(one)
    return found


@pytest.mark.parametrize("kind", sorted(TABLE))
def test_a_larger_cap_in_the_definition_never_makes_its_task_cheaper(kind: str) -> None:
    definition = common_pb2.TaskDefinition()
    definition.CopyFrom(every_kind()[kind])
    for message, name in cap_fields(definition):
        before, value = worst_case_seconds(definition), getattr(message, name)
        setattr(message, name, value * 2)
        with contextlib.suppress(ConfigurationError):  # no such task: another number of it bounds the cap
            assert worst_case_seconds(definition) >= before, name
        setattr(message, name, value)


def test_the_rows_that_a_device_reads_have_a_cap_in_every_kind_of_task() -> None:
    for name, definition in every_kind().items():
        for table in algorithm_for(definition).local_data:
            assert 1 <= table.most_rows <= 100_000, name


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        ({}, 0.25),
        ({"epochs": 100}, 4.0),
        ({"epochs": 1000}, 64.0),
        ({"features": 784, "classes": 10}, 1.0),
    ],
    ids=["default", "100 epochs", "1,000 epochs", "images"],
)
def test_steps_of_trainings_are_as_they_were_published(work: dict[str, Any], seconds: float) -> None:
    assert fixed_seconds(training(**work).definition()) == seconds


def test_the_step_is_the_smallest_that_is_four_times_the_worst_case() -> None:
    for epochs in (1, 10, 100, 1000):
        definition = training(epochs=epochs).definition()
        needed = SAFETY * worst_case_seconds(definition)
        assert needed <= fixed_seconds(definition)
        assert all(step < needed for step in STEPS if step < fixed_seconds(definition))


def test_a_task_that_no_step_pays_is_refused_where_it_is_signed_with_numbers_that_fit() -> None:
    hostile = training(784, classes=10, epochs=1000, most_examples=4000).definition()
    with pytest.raises(ConfigurationError, match=r"fit 64 s .* lower most_examples=4000 .* or epochs=1000"):
        sign_task(hostile, KEY)
    cost = algorithm_for(hostile).computing_cost
    fits = cost.largest("epochs", seconds=STEPS[-1] / SAFETY)
    assert f"epochs=1000 (at most {fits})" in refusal(lambda: sign_task(hostile, KEY))
    sign_task(training(784, classes=10, epochs=fits, most_examples=4000).definition(), KEY)
    with pytest.raises(ConfigurationError):
        sign_task(training(784, classes=10, epochs=fits + 1, most_examples=4000).definition(), KEY)


def test_a_device_refuses_a_task_of_too_much_work_that_its_developer_signed_all_the_same() -> None:
    signed = sign_task(training(784, classes=10, most_examples=4000).definition(), KEY)
    definition = common_pb2.TaskDefinition.FromString(signed.definition)
    definition.fedavg.local.epochs = 1000
    for milliseconds, expected in ((0, "epochs=1000 (at most"), (64000, "epochs=1000 (at most"), (250, "fit 0.25 s")):
        definition.computing_milliseconds = milliseconds
        assert expected in refusal(lambda: open_task(resigned(definition)))


def test_a_definition_of_few_bytes_and_a_million_parameters_is_refused() -> None:
    text = refusal(lambda: sign_task(training(10**6).definition(), KEY))
    assert "MiB" in text
    assert "most_examples=1000 (at most" in text


def test_reports_of_local_trust_that_would_fill_the_memory_are_refused() -> None:
    wide = odp.DrawAndDiscard(
        name="t", features={"x": odp.Number(size=16_000)}, epsilon=0.5, instances=3, most_examples=8000
    )
    assert "lower most_examples=8000 (at most" in refusal(lambda: sign_task(wide.definition(), KEY))


@pytest.mark.parametrize("milliseconds", [1, 249, 251, 300, 64001, 2**31])
def test_a_time_that_is_no_step_is_refused(milliseconds: int) -> None:
    definition = training().definition()
    definition.computing_milliseconds = milliseconds
    assert f"computing_milliseconds={milliseconds}" in refusal(lambda: sign_task(definition, KEY))


def test_a_step_shorter_than_the_caps_need_is_refused_and_a_longer_one_is_not() -> None:
    definition = training(epochs=100).definition()
    for milliseconds, refused in ((250, True), (1000, True), (4000, False), (16000, False)):
        definition.computing_milliseconds = milliseconds
        if refused:
            assert "lower" in refusal(lambda: open_task(resigned(signed_by(definition))))
        else:
            assert fixed_seconds(open_task(resigned(signed_by(definition)))) == milliseconds / 1000


def test_a_round_lasts_at_least_four_times_as_long_as_its_devices_compute() -> None:
    sign_task(training(epochs=100, round_seconds=16).definition(), KEY)
    text = refusal(lambda: sign_task(training(epochs=100, round_seconds=15).definition(), KEY))
    assert "round_seconds=15" in text
    assert "at least 16" in text
    assert "epochs=100 (at most" in text


def test_a_task_that_was_signed_without_the_field_has_the_step_of_its_caps() -> None:
    definition = common_pb2.TaskDefinition.FromString(sign_task(training(epochs=100).definition(), KEY).definition)
    definition.computing_milliseconds = 0
    assert fixed_seconds(open_task(resigned(definition))) == 4.0


def test_keys_are_asked_for_at_a_step_that_suffices_to_read_the_rows() -> None:
    events = odp.Events(service="music", type="play", item="track", most_events=100_000)
    task = odp.Task(
        name="t", model=odp.MatrixFactorization(items=12, rank=2), cohort=cohort(),
        data=odp.ImplicitData(events=events), training=odp.ImplicitDPAM(steps=1),
        privacy=odp.UserLevelDP(epsilon=4.0, delta=1e-6, max_items_per_user=4),
    )  # fmt: skip
    assert keys_seconds(task.definition()) == 1.0
    assert keys_seconds(every_kind()["dpam"]) == 0.25


def test_a_device_that_is_too_slow_says_so_by_public_facts_alone() -> None:
    definition = training(epochs=100).definition()
    limit = 0.75 * fixed_seconds(definition) / worst_case_seconds(definition)
    require_fast_enough(definition, limit * 0.99)
    with pytest.raises(PrivacyError, match=r"too slow for task 'clicks': it may need .* nothing was read"):
        require_fast_enough(definition, limit * 1.01)


def test_a_measurement_is_the_best_of_some_runs() -> None:
    durations = iter([9.0, 0.0, 1.0, 9.0, 9.0])
    times: list[float] = [0.0]

    def clock() -> float:
        # Every second call ends a run.
        if len(times) % 2:
            times.append(times[-1])
        else:
            times.append(times[-1] + next(durations) + 1.0)
        return times[-1]

    assert computing_time.reference_seconds(clock) == 1.0


def test_a_fast_machine_is_measured_once_and_one_that_seems_slow_five_times() -> None:
    fast = iter([0.9])
    speed = Speed(lambda: next(fast))
    assert [speed(), speed()] == [0.9, 0.9]
    slow = iter([3.0, 4.0, 2.0, 2.5, 1.5, 1.0])
    speed = Speed(lambda: next(slow))
    assert [speed() for _ in range(7)] == [1.5] * 7


def test_threads_do_not_measure_a_machine_at_a_time() -> None:
    measuring = threading.Lock()

    def measure() -> float:
        assert measuring.acquire(blocking=False)
        threading.Event().wait(0.01)
        measuring.release()
        return 2.0

    speed = Speed(measure)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: speed(), range(8))) == [2.0] * 8


def test_a_cost_is_a_sum_of_products_of_its_caps() -> None:
    cost = ComputingCost({"a": 2, "b": 3}, (Product(1.0), Product(0.5, "a", "b")), (Product(8.0, "b"),))
    assert (cost.seconds, cost.bytes) == (4.0, 24.0)
    assert cost.largest("a", seconds=2.5) == 1
    assert cost.largest("a", seconds=0.5) == 0
    assert cost.largest("b", seconds=100.0, bytes=16.0) == 2


def test_the_memory_of_a_wide_model_counts_with_its_rows() -> None:
    narrow, wide = (worst_case_bytes(training(features).definition()) for features in (10, 1000))
    assert wide - narrow > 4000 * 990 * 8


def refusal(act: Callable[[], object]) -> str:
    """The one line of the error."""
    with pytest.raises(ConfigurationError) as raised:
        act()
    (line,) = str(raised.value).splitlines()
    return line


def signed_by(definition: common_pb2.TaskDefinition) -> common_pb2.TaskDefinition:
    signed = common_pb2.TaskDefinition()
    signed.CopyFrom(definition)
    signed.developer_key = KEY.public
    return signed


def resigned(definition: common_pb2.TaskDefinition) -> common_pb2.SignedTask:
    """A task that its developer signed without the checks of ``sign_task``."""
    data = definition.SerializeToString(deterministic=True)
    return common_pb2.SignedTask(definition=data, signature=KEY.sign(domains.TASK, data))


def test_rows_of_examples_are_capped_before_they_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = odp.DrawAndDiscard(
        name="t", features={"x": odp.Number()}, epsilon=2.0, instances=3, most_examples=5
    ).definition()
    algorithm = algorithm_for(definition)
    terms = cast("Any", algorithm.terms())
    rows, encode, encoded = odp_rows(50), LocalFeatures.encode, []

    def counted(self: Any, columns: Any, count: int) -> Any:
        encoded.append((count, *map(len, columns.values())))
        return encode(self, columns, count)

    monkeypatch.setattr(LocalFeatures, "encode", counted)
    numbers, targets = terms.rows(rows)
    assert encoded == [(5, 5)]
    assert len(numbers) == len(targets) == 5
    np.testing.assert_array_equal(numbers[:, -1], rows.features["x"][-5:])


def odp_rows(count: int) -> Any:
    from odp.algorithms.seam import LocalRows

    places = np.arange(count)
    return LocalRows(places, np.ones(count), {"x": places / count})
