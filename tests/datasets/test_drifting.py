"""The drifting generator: catalogues that change, tastes that turn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from odp.datasets.catalogue import catalogue_keys
from odp.datasets.drifting import drifting_ratings
from odp.errors import ConfigurationError

SMALL = {"n_users": 200, "n_items": 60, "ratings_per_week": 3.0, "kept_weeks": 4, "new_items": 3}


def test_the_same_arguments_give_the_same_ratings():
    for one, other in zip(drifting_ratings(weeks=3, **SMALL), drifting_ratings(weeks=3, **SMALL), strict=True):
        assert np.array_equal(one.split.train.values, other.split.train.values)
        assert np.array_equal(one.split.test.items, other.split.test.items)


def test_each_week_new_items_come_and_as_many_go():
    weeks = list(drifting_ratings(weeks=5, **SMALL))
    keys = [set(catalogue_keys(week.split.train)) for week in weeks]
    assert [week.number for week in weeks] == [0, 1, 2, 3, 4]
    for before, after in itertools.pairwise(keys):
        assert len(after) == 60
        assert len(after - before) == 3


def test_new_items_have_no_training_ratings_and_a_title_keeps_its_flags():
    flags: dict[str, bytes] = {}
    for week in drifting_ratings(weeks=6, **SMALL):
        train = week.split.train
        assert not np.isin(train.items, np.arange(57, 60)).any()
        assert week.split.validation.n_ratings == 0
        for key, row in zip(catalogue_keys(train), train.features, strict=True):
            assert flags.setdefault(key, row.tobytes()) == row.tobytes()


def test_nobody_rates_again_what_the_device_still_holds():
    for week in drifting_ratings(weeks=4, **SMALL):
        train, test = week.split.train, week.split.test
        held = set(zip(train.users().tolist(), train.items.tolist(), strict=True))
        assert held.isdisjoint(zip(test.users().tolist(), test.items.tolist(), strict=True))


def test_without_drift_and_new_items_nothing_changes_but_the_ratings():
    first, *_, last = drifting_ratings(weeks=8, **(SMALL | {"new_items": 0}), drift=0.0)
    means = [
        np.bincount(w.split.train.items, w.split.train.values, 60)
        / np.maximum(np.bincount(w.split.train.items, minlength=60), 1)
        for w in (first, last)
    ]
    seen = np.minimum(*(np.bincount(w.split.train.items, minlength=60) for w in (first, last))) > 30
    # Ratings of one item have a standard deviation below 1.2: means of 30 differ by less than .31 * 4.
    assert np.abs(means[0] - means[1])[seen].max() < 1.24
    assert seen.sum() > 20


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"weeks": 0}, "weeks"),
        ({"drift": 1.5}, "drift"),
        ({"new_items": 40}, "new_items"),
        ({"ratings_per_week": 20.0}, "ratings_per_week"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(changes, name):
    with pytest.raises(ConfigurationError, match=name):
        drifting_ratings(**({"weeks": 2} | SMALL | changes))
