"""`odp retrain`: the whole command, on invented ratings and on files."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import odp as platform
from odp.errors import ConfigurationError, PrivacyError


# The command runs on files below, and on drifting ratings in research/simulation/test_retraining.py.
@pytest.mark.proof
def test_invented_ratings_end_in_a_table_a_picture_and_a_start(odp, tmp_path):
    options = ("--horizon", "2w", "--lifetime-epsilon", "8", "--new-items", "3")
    printed = odp("retrain", *options, "--output", tmp_path / "run", "--json")
    assert printed.json["schedule"]["lifetime_epsilon"] == 8.0
    assert 7.7 < printed.json["epsilon"] <= 8.0
    assert len(printed.json["trainings"]) == len(printed.json["from_nothing"]) == 2
    assert "from the release before" in printed.err + printed.out
    assert (tmp_path / "run" / "retraining.png").stat().st_size > 10_000
    assert json.loads((tmp_path / "run" / "retraining.json").read_text())["trainings"][1]["known"] == 497
    assert len(platform.WarmStart.load(tmp_path / "run" / "start.npz").keys) == 500


def test_files_are_one_training_each(odp, tmp_path):
    for number in (1, 2):
        platform.synthetic_movielens(n_users=300, n_items=60).save(tmp_path / f"{number}.npz")
    printed = odp("retrain", tmp_path / "1.npz", tmp_path / "2.npz", "--no-noise", "--no-scratch", "--json")
    assert [row["items"] for row in printed.json["trainings"]] == [60, 60]
    assert printed.json["epsilon"] == "inf"


def test_files_are_cut_at_one_moment(odp, tmp_path):
    ratings = platform.synthetic_movielens(n_users=300, n_items=60)
    times = 10**9 + np.random.default_rng(1).integers(0, 100, ratings.n_ratings) * 86_400
    dataclasses.replace(ratings, times=times, time_unit="s").save(tmp_path / "1.npz")
    options = ("--no-noise", "--no-scratch", "--json")
    cut = odp("retrain", tmp_path / "1.npz", "--split", "time:2001-11-20", *options).json
    at_random = odp("retrain", tmp_path / "1.npz", *options).json
    assert cut["trainings"][0]["test_rmse"] != at_random["trainings"][0]["test_rmse"]
    with pytest.raises(ConfigurationError, match="--split is for data sets by name"):
        odp("retrain", "--split", "time:0.9")
    with pytest.raises(ConfigurationError, match="time:DATE"):
        odp("retrain", tmp_path / "1.npz", "--split", "0.9")


def test_a_search_is_cut_at_one_moment_and_tells_what_only_its_test_part_has(odp, tmp_path):
    ratings = platform.synthetic_movielens(n_users=300, n_items=60)
    times = 10**9 + np.random.default_rng(1).integers(0, 100, ratings.n_ratings) * 86_400
    dataclasses.replace(ratings, times=times, time_unit="s").save(tmp_path / "1.npz")
    printed = odp("tune", "--proxy", tmp_path / "1.npz", "--split", "time:2001-11-20", "--trials", "1", "--json")
    assert "only the test part has" in printed.err
    assert printed.json["trials"][0]["score"] > 0


@pytest.mark.slow
def test_a_data_set_with_times_trains_by_month(odp, tmp_path):
    ratings = platform.synthetic_movielens(n_users=1200, n_items=40, ratings_per_user=12)
    month = 31 * 86_400
    # Of each person, a third of the ratings in January, in February and in March 1970.
    times = 1 + month * (np.arange(ratings.n_ratings) % 3)
    lines = zip(ratings.users(), ratings.items, ratings.values.astype(int), times, strict=True)
    (tmp_path / "ratings.dat").write_text("".join(f"{u + 1}::{i + 1}::{v}::{t}\n" for u, i, v, t in lines))
    options = (
        "--by-month",
        "--every",
        "30d",
        "--horizon",
        "360d",
        "--lifetime-epsilon",
        "30",
        "--no-scratch",
        "--json",
    )
    printed = odp("retrain", tmp_path, *options)
    rows = printed.json["trainings"]
    assert "devices would decline training" in " ".join((printed.err + printed.out).split())
    assert [row["items"] for row in rows] == [40, 40]
    assert [row["known"] for row in rows] == [0, 40]


def test_what_does_not_fit_is_refused(odp):
    with pytest.raises(ConfigurationError, match="--by-month is for one data set"):
        odp("retrain", "--by-month")

    with pytest.raises(PrivacyError, match="it pays for"):
        odp("retrain", "--lifetime-epsilon", "1")
    with pytest.raises(ConfigurationError, match="--drift is for invented"):
        odp("retrain", "some.csv", "--drift", "0.1")
    with pytest.raises(ConfigurationError, match="such as"):
        odp("retrain", "--every", "weekly")
