"""Tasks: what is refused at construction, and what a definition says."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import odp
from odp.algorithms.computing_time import fixed_seconds
from odp.errors import ConfigurationError, PrivacyError
from odp.protocol.terms import check_delta_for


def _task(**changes: object) -> odp.Task:
    parts: dict[str, object] = {
        "name": "films",
        "model": odp.MatrixFactorization(items=40, rank=2),
        "data": odp.RatingsData(low=1, high=5),
        "privacy": odp.UserLevelDP(epsilon=8, delta=1e-6),
    }
    return odp.Task(**{**parts, **changes})


def test_a_task_says_every_number_that_follows_from_it() -> None:
    definition = _task(cohort=odp.Cohort(minimum=20)).definition()
    assert (definition.name, definition.population) == ("films", "films")
    assert (definition.model.items, definition.model.rank) == (40, 2)
    assert (definition.privacy.epsilon, definition.privacy.delta) == (8.0, 1e-6)
    assert definition.privacy.max_items_per_user == 40, "300, but no more than there are"
    assert (definition.cohort.minimum, definition.cohort.goal, definition.cohort.round_seconds) == (20, 20, 3600)
    assert definition.dpam.count_noise_std > 0
    assert definition.developer_key == b"", "the server's to fill"
    assert _task().definition() == _task().definition()


def test_a_population_of_its_own_is_kept() -> None:
    assert _task(population="people").definition().population == "people"


@pytest.mark.parametrize("population", [0, False, None, [], "Films", "a/b"])
def test_a_population_that_is_no_name_is_never_replaced_by_the_tasks_name(population: object) -> None:
    with pytest.raises(ConfigurationError, match="Expected population="):
        _task(population=population)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (odp.UserLevelDP, {"epsilon": 0, "delta": 1e-6}, "epsilon=0"),
        (odp.UserLevelDP, {"epsilon": 101, "delta": 1e-6}, "epsilon=101"),
        (odp.UserLevelDP, {"epsilon": math.nan, "delta": 1e-6}, "epsilon=nan"),
        (odp.UserLevelDP, {"epsilon": -math.inf, "delta": 1e-6}, "epsilon=-inf"),
        (odp.UserLevelDP, {"epsilon": "8", "delta": 1e-6}, "epsilon='8'"),
        (odp.UserLevelDP, {"epsilon": 8, "delta": 0}, "delta=0"),
        (odp.UserLevelDP, {"epsilon": 8, "delta": 0.02}, "delta=0.02"),
        (odp.UserLevelDP, {"epsilon": 8, "delta": 1e-6, "max_items_per_user": 0}, "max_items_per_user=0"),
        (odp.UserLevelDP, {"epsilon": 8, "delta": 1e-6, "max_items_per_user": 4097}, "max_items_per_user=4097"),
        (odp.RatingsData, {"low": 5, "high": 5}, "low=5 to be below high=5"),
        (odp.RatingsData, {"low": 1, "high": math.inf}, "data_high=inf"),
        (odp.RatingsData, {"table": "a b"}, "table='a b'"),
        (odp.Cohort, {"minimum": 0}, "minimum=0"),
        (odp.Cohort, {"minimum": 50, "goal": 49}, "goal=49"),
        (odp.Cohort, {"round_seconds": 0}, "round_seconds=0"),
        (odp.Cohort, {"minimum": True}, "minimum=True"),
    ],
)
def test_a_value_out_of_range_is_named(kind: type, values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace(".", r"\.")) as caught:
        kind(**values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "My films"}, "name='My films'"),
        ({"model": "matrix"}, r"model to be an odp\.MatrixFactorization or odp\.Glm.*, got a str"),
        ({"privacy": None}, r"privacy to be an odp\.UserLevelDP"),
        ({"privacy": odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=41)}, "max_items_per_user=41.*items=40"),
        ({"model": odp.MatrixFactorization(items=3, rank=4)}, "rank=4 to be at most items=3"),
        ({"model": odp.MatrixFactorization(items=40, rank=8), "training": odp.DPAM(steps=0)}, "steps=0.*rank=8"),
        ({"training": odp.DPAM(slices_per_device=10)}, "slices_per_device=10"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused_at_construction(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _task(**changes)


def test_a_misspelt_keyword_names_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'cohort'"):
        _task(cohrot=odp.Cohort())


@pytest.mark.parametrize(("delta", "users"), [(1e-3, 1000), (1e-2, 101)])
def test_a_delta_that_allows_to_publish_a_user_is_refused(delta: float, users: int) -> None:
    """Rule P5: delta times users below 1."""
    with pytest.raises(PrivacyError, match="to be below 1/users="):
        check_delta_for(delta, users)
    check_delta_for(delta / 2, users)
    with pytest.raises(PrivacyError, match="to be below 1/users="):
        _task(privacy=odp.UserLevelDP(epsilon=8, delta=delta), cohort=odp.Cohort(minimum=20, goal=users))


def test_no_noise_can_be_asked_for_and_then_there_is_none() -> None:
    dpam = _task(privacy=odp.UserLevelDP(epsilon=math.inf, delta=1e-6)).definition().dpam
    assert (dpam.count_noise_std, dpam.bias_mass_noise, dpam.gram_noise, dpam.target_noise) == (0, 0, 0, 0)


def test_numbers_of_numpy_are_numbers() -> None:
    ours = _task(privacy=odp.UserLevelDP(epsilon=np.float64(8), delta=np.float64(1e-6)))
    assert ours.definition() == _task().definition()


def test_a_task_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        _task().privacy.epsilon = 100.0  # type: ignore[misc]


_DRAWN = {"sampling": "enclave_poisson", "sampling_probability": 0.25, "most_contributions": 400}


@pytest.mark.slow
def test_a_sampled_task_states_every_number_of_its_draw_and_less_noise_for_the_same_budget() -> None:
    from odp.algorithms.registry import algorithm_for
    from odp.algorithms.release import round_charges, sampling_of
    from odp.privacy.accounting import epsilon
    from odp.privacy.composition import truncation_cap

    training = odp.DPAM(steps=1)
    full = _task(cohort=odp.Cohort(minimum=20), training=training).definition()
    task = _task(cohort=odp.Cohort(minimum=20, **_DRAWN), training=training)
    definition = task.definition()
    draw = definition.cohort.enclave_poisson
    assert (draw.probability, draw.most_contributions) == (0.25, 400)
    assert draw.cap == truncation_cap(probability=0.25, population_bound=400, rounds=10_000, delta=1e-6)
    assert not full.cohort.HasField("enclave_poisson")
    assert definition.dpam.count_noise_std < full.dpam.count_noise_std
    # Less noise, but by less than what the draw takes of the signal.
    assert definition.dpam.count_noise_std > 0.25 * full.dpam.count_noise_std
    algorithm, sampling = algorithm_for(definition), sampling_of(definition, 0)
    events = [event for number in range(3) for event in round_charges(algorithm.query(number), sampling)]
    assert len(events) == 3
    assert 7.9 < epsilon(events, delta=1e-6, interval=1e-3) <= 8.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": "fixed_size"}, "'full' or 'enclave_poisson': a draw of a fixed size"),
        ({"sampling": "enclave_poisson"}, "most_contributions=None"),
        ({"sampling_probability": 0.5}, "sampling='full'"),
        ({**_DRAWN, "most_contributions": None}, "most_contributions=None"),
        ({**_DRAWN, "sampling_probability": 0.0}, "sampling_probability=0.0"),
        ({**_DRAWN, "sampling_probability": 1.0}, "full participation"),
        ({**_DRAWN, "most_contributions": 99}, "most_contributions=99"),
        ({**_DRAWN, "goal": 500}, "most_contributions=400"),
    ],
)
def test_terms_of_a_draw_that_do_not_fit_together_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        odp.Cohort(**changes)


def test_a_sampled_task_is_a_file_like_any_other() -> None:
    from odp.tasks.file import parse_task, render_task

    task = _task(cohort=odp.Cohort(minimum=20, **_DRAWN), training=odp.DPAM(steps=1))
    text = render_task(task)
    assert 'sampling = "enclave_poisson"' in text
    assert parse_task(text) == task
    with pytest.raises(ConfigurationError, match=r"task.toml:\d+: .*sampling_probability"):
        parse_task(text.replace("sampling_probability = 0.25", "sampling_probability = 2.0"))


def _asked(**cohort: Any) -> odp.Statistics:
    return odp.Statistics(
        name="hours",
        queries={"hours": odp.Histogram(bins=24)},
        privacy=odp.UserLevelDP(epsilon=1, delta=1e-6),
        cohort=odp.Cohort(minimum=20, **cohort),
    )


def test_statistics_can_ask_for_masked_sums_in_the_same_definition_otherwise() -> None:
    from odp.tasks.file import parse_task, render_task
    from odp.v1 import common_pb2

    task = _asked(aggregation="masked")
    text = render_task(task)
    assert 'aggregation = "masked"' in text
    assert parse_task(text) == task
    definition, plain = task.definition(), _asked().definition()
    assert plain.cohort.aggregation == common_pb2.CohortTerms.AGGREGATION_UNSPECIFIED
    definition.cohort.ClearField("aggregation")
    assert definition == plain
    with pytest.raises(ConfigurationError, match=r"task.toml:\d+: .*aggregation"):
        parse_task(text.replace('"masked"', '"maskd"'))


def test_gram_matrices_of_all_items_are_not_masked() -> None:
    with pytest.raises(ConfigurationError, match="step='gradient' or steps=0 with aggregation='masked'"):
        _task(cohort=odp.Cohort(minimum=20, aggregation="masked"))


def test_masked_sums_are_not_sampled() -> None:
    with pytest.raises(ConfigurationError, match="to be 'full' with aggregation='masked'"):
        _asked(aggregation="masked", **_DRAWN)


def test_a_task_may_give_its_devices_more_time_than_its_caps_need() -> None:
    patient = _task(cohort=odp.Cohort(minimum=100, computing_seconds=4.0))
    assert patient.definition().computing_milliseconds == 4000
    assert fixed_seconds(patient.definition()) == 4.0
    with pytest.raises(ConfigurationError, match=r"Expected computing_seconds=3\.0 to be one of 0\.25, 1\.0"):
        odp.Cohort(computing_seconds=3.0)
