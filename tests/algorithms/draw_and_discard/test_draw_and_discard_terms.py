"""What a developer writes of a Draw and Discard task, its definition, and how rows become numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import odp
from odp.algorithms.draw_and_discard.features import LocalFeatures
from odp.algorithms.draw_and_discard.terms import Terms
from odp.errors import ConfigurationError, DataError, PrivacyError
from odp.models.example_columns import ExampleColumns
from odp.privacy.mechanisms.random_source import LAPLACE_CLOSENESS
from odp.v1 import common_pb2

FEATURES = {"member": odp.Boolean(), "kind": odp.Category(("a", "b", "c")), "age": odp.Number(low=0, high=50)}


def task(**changes: Any) -> odp.DrawAndDiscard:
    given: dict[str, Any] = {
        "name": "clicks", "features": FEATURES, "epsilon": math.log(16), "crosses": [("member", "kind")],
        "false_alarms": 0.0,
    }  # fmt: skip
    return odp.DrawAndDiscard(**(given | changes))


def test_a_definition_has_every_number_and_reads_back_as_it_was_written() -> None:
    definition = task(instances=4, false_alarms=0.1, most_reports=3, start=[0.5] * 7).definition()
    terms = Terms.of(common_pb2.TaskDefinition.FromString(definition.SerializeToString()))
    assert terms.to_proto() == definition.draw_and_discard
    assert (terms.weights, terms.instances, terms.most_reports) == (7, 4, 3)
    assert terms.spam.most_deviations > 1
    assert terms.spam.most_spread > 1
    assert terms.spam.false_alarms == 0.1
    assert definition.privacy.epsilon == terms.lifetime_epsilon == 3 * terms.model_epsilon
    assert (terms.start == 0.5).all()


@pytest.mark.parametrize("epsilon", [0.01, 1.0, math.log(3), math.log(32), 100.0])
@pytest.mark.parametrize("rate", [1e-4, 0.005, 1.0])
def test_epsilon_is_exact_never_above_what_was_asked_and_close_to_it(epsilon: float, rate: float) -> None:
    terms = task(epsilon=epsilon, rate=rate).terms()
    assert terms.feature_epsilon == 2 * terms.movement / terms.noise_scale + 2 * LAPLACE_CLOSENESS
    assert 0.98 * epsilon <= terms.feature_epsilon <= epsilon
    assert terms.movement * terms.step <= rate * terms.clip


def test_epsilon_of_a_model_is_shared_by_its_weights() -> None:
    by_model, by_feature = task(epsilon=7.0, per="model"), task(epsilon=1.0)
    assert by_model.weights == 7
    assert 0.98 * 7.0 <= by_model.model_epsilon <= 7.0
    assert by_model.feature_epsilon == pytest.approx(by_feature.feature_epsilon, rel=1e-3)
    assert by_feature.model_epsilon == 7 * by_feature.feature_epsilon


def test_a_statement_of_less_privacy_loss_than_the_noise_has_is_refused() -> None:
    definition = task().definition()
    definition.draw_and_discard.model_epsilon /= 2
    with pytest.raises(PrivacyError, match="as the noise has it"):
        Terms.of(definition)


def test_a_definition_without_noise_is_refused() -> None:
    definition = task().definition()
    definition.draw_and_discard.noise_scale = 0
    with pytest.raises(PrivacyError, match="no report without noise"):
        Terms.of(definition)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": math.inf}, "finite"),
        ({"per": "weight"}, "feature, model"),
        ({"family": "logit"}, "did you mean 'logistic'"),
        ({"family": "multinomial"}, "classes=1"),
        ({"instances": 0}, "instances=0"),
        ({"rate": 1e-9}, "rate_times_clip"),
        ({"crosses": [("member", "knd")]}, "did you mean 'kind'"),
        ({"crosses": [("member", "member")]}, "two different features"),
        ({"crosses": [("member", "kind"), ("kind", "member")]}, "once"),
        ({"features": {}}, "features=0"),
        ({"features": {"label": odp.Boolean()}, "crosses": ()}, "to be no feature"),
        ({"start": [1.0]}, "7 numbers"),
        ({"start": ["a"]}, "start to be numbers"),
        ({"most_reports": 0}, "most_reports=0"),
        ({"table": "ratings"}, "examples"),
        ({"label_low": 2.0}, "label_low"),
    ],
)
def test_bad_values_are_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        task(**change)


def test_so_rare_false_alarms_that_no_simulation_shows_them_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least"):
        task(false_alarms=1e-9).terms()


def test_rows_become_numbers_with_the_last_category_as_reference() -> None:
    features = LocalFeatures(FEATURES, crosses=[("member", "kind"), ("member", "age")])
    columns = {"member": np.array([1, 0]), "kind": np.array(["b", "c"]), "age": np.array([25.0, 50.0])}
    numbers, known = features.encode(features.numbers(columns), 2)
    assert features.names == (
        "intercept", "member", "kind=a", "kind=b", "age", "member*kind=a", "member*kind=b", "member*age"
    )  # fmt: skip
    assert known.all()
    assert numbers.tolist() == [[1, 1, 0, 1, 0.5, 0, 1, 0.5], [1, 0, 0, 0, 1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("name", "value"),
    [("member", 2), ("kind", 3), ("kind", -1), ("kind", 0.5), ("age", 50.01), ("age", -1), ("age", math.nan)],
)
def test_rows_beyond_what_is_declared_are_left_out(name: str, value: float) -> None:
    columns = {"member": np.array([1.0, 1.0]), "kind": np.array([0.0, 1.0]), "age": np.array([1.0, 1.0])}
    columns[name][0] = value
    numbers, known = LocalFeatures(FEATURES).encode(columns, 2)
    assert known.tolist() == [False, True]
    assert not numbers[0].any()


def test_numbers_are_clipped_only_where_that_is_declared() -> None:
    clipped = LocalFeatures({"age": odp.Number(low=0, high=50, clip=True)})
    numbers, known = clipped.encode({"age": np.array([-10.0, 60.0, math.nan, math.inf])}, 4)
    assert known.tolist() == [True, True, False, False]
    assert numbers[:2, 1].tolist() == [0.0, 1.0]


def test_a_missing_column_leaves_all_rows_out_on_a_device_and_is_an_error_in_a_simulation() -> None:
    _, known = LocalFeatures(FEATURES).encode({"member": np.array([1, 1])}, 2)
    assert not known.any()
    people = ExampleColumns.of_users({"member": [1, 0], "label": [1, 0]}, [0, 1])
    with pytest.raises(DataError, match="column 'kind'"):
        task().simulate(people, updates=1)
