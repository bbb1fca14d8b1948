"""Events: what may be charged, and that nothing else may."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from odp.errors import ConfigurationError, PrivacyError
from odp.privacy.events import GaussianRelease, from_json

EVENT = GaussianRelease("counts", 10.0, 200.0, 1682)

releases = st.builds(
    GaussianRelease,
    name=st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True),
    sensitivity=st.floats(1e-6, 1e6),
    noise_std=st.floats(1e-6, 1e9),
    coordinates=st.integers(1, 10**9),
)


def test_mu_and_noise_multiplier_are_reciprocal_ratios():
    assert EVENT.mu == 0.05
    assert EVENT.noise_multiplier == 20.0


@given(releases)
def test_an_event_survives_json_bit_for_bit(event):
    assert from_json(json.loads(json.dumps(event.to_json()))) == event


@pytest.mark.parametrize("field", ["sensitivity", "noise_std"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), True, "1", None])
def test_no_noise_and_numbers_that_are_none_are_refused(field, value):
    with pytest.raises(ConfigurationError, match=field):
        GaussianRelease(**{"name": "x", "sensitivity": 1.0, "noise_std": 1.0, "coordinates": 1, field: value})


@pytest.mark.parametrize("coordinates", [0, -1, 1.5, True, 2**60])
def test_the_number_of_coordinates_is_a_positive_whole_number(coordinates):
    with pytest.raises(ConfigurationError, match="coordinates"):
        GaussianRelease("x", 1.0, 1.0, coordinates)


def test_a_ratio_that_underflows_to_no_cost_is_refused():
    with pytest.raises(ConfigurationError, match="sensitivity / noise_std"):
        GaussianRelease("x", 1e-200, 1e200, 1)


def test_whole_numbers_become_floats_so_that_equal_events_have_equal_bytes():
    assert json.dumps(GaussianRelease("x", 1, 2, 3).to_json()) == json.dumps(
        GaussianRelease("x", 1.0, 2.0, 3).to_json()
    )


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"mechanism": "laplace"}, PrivacyError, "'laplace' cannot be charged"),
        ({"mechanism": "poisson_sampled_gaussian"}, PrivacyError, "cannot be charged"),
        ({"mechanism": None}, PrivacyError, "cannot be charged"),
        ({"adjacency": "replace_one"}, PrivacyError, "known adjacencies: zero_out_user, add_remove_user"),
        ({"adjacency": "any_two_inputs"}, PrivacyError, "which holds for zero_out_user, add_remove_user"),
        ({"adjacency": None}, PrivacyError, "adjacency=None cannot be charged"),
        ({"norm": "l1"}, PrivacyError, "only 'l2'"),
        ({"noise_std": 0.0}, ConfigurationError, "noise_std"),
        ({"sampling_probability": 0.01}, ConfigurationError, "Unknown key 'sampling_probability'"),
    ],
)
def test_anything_without_accounting_is_refused(change, error, match):
    with pytest.raises(error, match=match):
        from_json({**EVENT.to_json(), **change})


@pytest.mark.parametrize("key", ["name", "sensitivity", "noise_std", "coordinates", "norm"])
def test_missing_fields_have_no_default(key):
    value = EVENT.to_json()
    del value[key]
    with pytest.raises(ConfigurationError, match=key):
        from_json(value)


@pytest.mark.parametrize("value", [None, [], "gaussian", 3])
def test_only_objects_are_events(value):
    with pytest.raises(ConfigurationError, match="object"):
        from_json(value)
