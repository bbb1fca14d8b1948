"""Finished trials in a file: taken again by the same run, and by no other."""

from __future__ import annotations

import json
import math

import pytest

import odp
from odp.errors import StateError
from odp.research.simulation import comparing
from odp.research.simulation.trials import FinishedTrials

RUN = {"data": "films"}


def test_a_trial_is_found_again_and_a_line_that_was_cut_off_is_not(tmp_path):
    path = tmp_path / "runs" / "trials.jsonl"
    with FinishedTrials(path, RUN) as kept:
        kept.add(("DPAM", 1.0, 3), [0.9])
        assert kept.find(("DPAM", 1.0, 3)) == [0.9]
    with path.open("a") as file:
        file.write('{"trial": ["DPAM", 2.0')
    with FinishedTrials(path, RUN) as again:
        assert again.find(("DPAM", 1.0, 3)) == [0.9]
        assert again.find(("DPAM", 2.0, 3)) is None
        again.add(("DPAM", 2.0, 3), [0.8])
    with FinishedTrials(path, RUN) as kept:
        assert kept.find(("DPAM", 2.0, 3)) == [0.8]


@pytest.mark.parametrize("length", [1, 40])
def test_a_file_that_was_cut_off_in_its_first_line_is_begun_again(tmp_path, length):
    path = tmp_path / "trials.jsonl"
    with FinishedTrials(path, RUN):
        pass
    path.write_bytes(path.read_bytes()[:length])
    with FinishedTrials(path, RUN) as kept:
        kept.add(("DPAM", 1.0, 3), [0.9])
    with FinishedTrials(path, RUN) as kept:
        assert kept.find(("DPAM", 1.0, 3)) == [0.9]


def test_two_programs_do_not_share_a_file(tmp_path):
    path = tmp_path / "trials.jsonl"
    with FinishedTrials(path, RUN) as kept:
        kept.add(("DPAM", 1.0, 3), [0.9])
        before = path.read_bytes()
        with pytest.raises(StateError, match=r"another program keeps its trials in .*: give another file"):
            FinishedTrials(path, RUN)
        assert path.read_bytes() == before
    with FinishedTrials(path, RUN):
        pass


@pytest.mark.parametrize("text", ["{}\n", "no trials\n", '["run"]\n'])
def test_a_file_of_another_kind_or_run_is_refused(tmp_path, text):
    path = tmp_path / "trials.jsonl"
    path.write_text(text)
    with pytest.raises(StateError, match="give another file"):
        FinishedTrials(path, RUN)


def test_a_comparison_goes_on_where_it_was(tmp_path, monkeypatch):
    path = tmp_path / "trials.jsonl"
    ratings = odp.data.synthetic_movielens(n_users=200, n_items=30, ratings_per_user=12, seed=2)
    names = ["user mean", "DPAM"]
    arguments = {"epsilons": (2.0, 8.0), "seeds": 2, "methods": names, "resume": path}
    ran = []

    class Stopped(Exception):
        pass

    def stop_at_third(*told):
        ran.append(told)
        if len(ran) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        odp.compare(ratings, on_score=stop_at_third, **arguments)
    after = []
    found = odp.compare(ratings, on_score=lambda *told: after.append(told), **arguments)
    assert len(ran) + len(after) == 6, "each run once"
    assert found.scores == odp.compare(ratings, epsilons=(2.0, 8.0), seeds=2, methods=names).scores
    with pytest.raises(StateError, match="another run"):
        odp.compare(ratings, **{**arguments, "delta": 1e-5})
    assert comparing.compare(ratings, **arguments).scores == found.scores
    first, second, *others = path.read_text().splitlines()
    for bad in (
        3,
        {"scores": [], "settings": {}},
        {"scores": ["x"], "settings": {}},
        {"scores": [math.nan], "settings": {}},
        {"scores": [1.0], "settings": 3},
        {"scores": [1.0], "settings": {"ridge": None}},
    ):
        damaged = json.dumps(json.loads(second) | {"found": bad})
        path.write_text("\n".join((first, damaged, *others)) + "\n")
        with pytest.raises(StateError, match="is damaged: a trial has no scores and settings; give another file"):
            odp.compare(ratings, **arguments)
