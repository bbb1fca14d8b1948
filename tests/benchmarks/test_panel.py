"""The panel: its grid is what it promises, a run goes on where it was, regret is its definition, more ε never hurts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.panel import regret, scores
from benchmarks.panel.__main__ import main
from benchmarks.panel.cells import HELD_OUT, TUNED, chosen, invented, real
from benchmarks.panel.scores import METHODS, PLAIN, WITH_FEATURES, Plan, Trial
from odp.errors import ConfigurationError
from odp.evaluation.trials import Outcome

CELLS = {cell.name: cell for cell in invented()}


def trial(method: str, *numbers: float, epsilon: float = 1.0, seed: int = 1, cell: str = "r01", **more: Any) -> Trial:
    return Trial(cell, epsilon, seed, method, Outcome(numbers, **more), 0.1)


def test_the_grid_covers_what_it_promises_and_half_of_it_is_held_out() -> None:
    models = [cell.definition for cell in invented()]
    assert len(models) >= 48
    assert len(CELLS) == len(models), "a name twice"
    for name, low, high in (("n_users", 500, 50_000), ("n_items", 100, 20_000), ("rank", 0, 8)):
        assert (min(m[name] for m in models), max(m[name] for m in models)) == (low, high)
    for kind in ([m for m in models if m["implicit"]], [m for m in models if not m["implicit"]]):
        assert {0.0} < {m["signal"] for m in kind}
        assert min(m["activity"] for m in kind) < 0.9 < max(m["activity"] for m in kind)
        assert {0, 0.8} <= {m["feature_share"] for m in kind if m["n_features"]}
    assert {0.0} < {m["popularity"] for m in models if not m["implicit"]}
    parts = [cell.part for cell in invented()]
    assert parts.count(TUNED) == parts.count(HELD_OUT) == len(parts) / 2
    tuned, held_out = (
        [m for m, part in zip(models, parts, strict=True) if part == which] for which in (TUNED, HELD_OUT)
    )
    assert all(m not in tuned for m in held_out)


def test_a_cell_is_of_its_name_and_the_same_every_time() -> None:
    ratings, again = CELLS["i01"].load(), CELLS["i01"].load()
    assert (ratings.name, ratings.implicit, ratings.n_users, ratings.n_items) == ("i01", True, 1000, 200)
    assert np.array_equal(ratings.items, again.items)
    assert ratings.n_ratings == pytest.approx(CELLS["i01"].n_ratings, rel=0.15)


def test_cells_are_chosen_by_name_or_part_small_ones_first() -> None:
    assert [cell.name for cell in chosen(invented(), ["r35", "r01"])] == ["r01", "r35"]
    assert {cell.part for cell in chosen(invented(), [HELD_OUT])} == {HELD_OUT}
    with pytest.raises(ConfigurationError, match=r"cell='r1'.*did you mean 'r"):
        chosen(invented(), ["r1"])


def test_real_data_sets_are_those_of_a_directory_and_tuned_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="ml-1m"):
        real(tmp_path)
    (tmp_path / "strangers").mkdir()
    lines = [f"u{user},i{item},{1 + (user * item) % 5}" for user in range(8) for item in range(6)]
    (tmp_path / "strangers" / "mine.csv").write_text("\n".join(["customer,sku,stars", *lines]) + "\n")
    (cell,) = real(tmp_path)
    assert (cell.name, cell.part) == ("mine", TUNED)
    ratings = cell.load()
    assert (ratings.low, ratings.high, ratings.n_ratings) == (1.0, 5.0, 48)
    assert cell.split(ratings, seed=1).train.n_ratings < 48


def test_methods_are_named_one_by_one_or_as_ours_and_others() -> None:
    assert scores.named_methods(None) == METHODS
    assert scores.named_methods(["ours"]) == (PLAIN, WITH_FEATURES)
    assert set(scores.named_methods(["others"])) | {PLAIN, WITH_FEATURES} == set(METHODS)
    assert scores.named_methods(["DPAM", "user mean"]) == ("user mean", "DPAM")
    with pytest.raises(ConfigurationError, match="DP-SGD"):
        scores.named_methods(["DP-SGD"])


def test_a_run_computes_what_its_folder_lacks_and_nothing_else(tmp_path: Path) -> None:
    quick = ("user mean", "DP item mean", "DP item mean + user bias", "DP popularity")
    plan = Plan([CELLS["r01"], CELLS["i01"]], (1.0, 8.0), (1, 2), quick)
    assert len(_run(plan, tmp_path)) == 2 * (1 + 2 * 2) + 2 * 2, "per seed: a user mean, and two ε of each other one"
    unloadable = [dataclasses.replace(cell, load=_refuse) for cell in plan.cells]
    assert _run(dataclasses.replace(plan, cells=unloadable), tmp_path) == []
    more = Plan(plan.cells, (1.0, 4.0), (1,), quick)
    assert [(t.method, t.epsilon) for t in _run(more, tmp_path)] == [
        ("DP item mean", 4.0), ("DP item mean + user bias", 4.0), ("DP popularity", 4.0)
    ]  # fmt: skip
    (tmp_path / "dp-item-mean.jsonl").unlink()
    assert {t.method for t in _run(plan, tmp_path)} == {"DP item mean"}
    changed = dataclasses.replace(plan.cells[0], definition={**plan.cells[0].definition, "noise": 0.5})
    assert len(_run(Plan([changed], (1.0,), (1,), ("DP item mean",)), tmp_path)) == 1, "a score of other data"


def test_what_is_read_is_what_was_computed(tmp_path: Path) -> None:
    plan = Plan([CELLS["r01"]], (1.0,), (1,), ("user mean", "DP item mean"))
    computed = _run(plan, tmp_path)
    stored = scores.read(plan, [tmp_path])
    assert [dataclasses.replace(t, outcome=Outcome((0.0,))) for t in stored] == [
        dataclasses.replace(t, outcome=Outcome((0.0,))) for t in computed
    ]
    for ours, theirs in zip(stored, computed, strict=True):
        assert ours.outcome == theirs.outcome
        assert ours.outcome.influence == pytest.approx(theirs.outcome.influence, rel=1e-6)


def test_each_method_is_read_from_the_last_folder_that_has_it_while_a_run_writes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    plan = Plan([CELLS["r01"]], (1.0,), (1,), ("user mean", "DP item mean"))
    _run(plan, first)
    _run(dataclasses.replace(plan, epsilons=(8.0,), methods=("DP item mean",)), second)
    both = dataclasses.replace(plan, epsilons=(1.0, 8.0))
    with (second / "dp-item-mean.jsonl").open("ab") as file:
        file.write(b'{"trial": ["r01"')
    assert [(t.method, t.epsilon) for t in scores.read(both, [first, second])] == [
        ("user mean", 0.0), ("DP item mean", 8.0)
    ]  # fmt: skip
    busy: list[int] = []
    scores.run(
        Plan([CELLS["r01"]], (2.0,), (1,), ("DP item mean",)),
        first,
        on_trial=lambda *_: busy.append(len(scores.read(both, [first]))),
    )
    assert busy == [2]


def test_regret_is_the_error_over_that_of_the_best_private_method() -> None:
    trials = [
        trial("user mean", 1.1, epsilon=0.0), trial("DP item mean", 1.0), trial("DP-SGD on the item table", 0.8),
        trial(PLAIN, 0.9), trial(PLAIN, 0.7, epsilon=8.0), trial("DP item mean", 0.9, epsilon=8.0),
    ]  # fmt: skip
    low, high = regret.judged([CELLS["r01"]], trials)
    assert low.regret == low.margin == pytest.approx(0.9 / 0.8 - 1)
    assert low.gain(regret.SIMPLE) == pytest.approx(0.2)
    assert high.regret == 0.0
    assert high.margin == pytest.approx(0.7 / 0.9 - 1)
    assert set(high.losses) == {"user mean", "DP item mean", PLAIN}


def test_regret_of_rankings_is_the_best_recall_over_ours() -> None:
    trials = [trial("DP popularity", 0.3, 0.2), trial(PLAIN, 0.25, 0.9)]
    (cell,) = regret.judged([CELLS["r01"]], trials)
    assert cell.regret == pytest.approx(0.3 / 0.25 - 1)


def test_regret_takes_means_over_the_seeds_that_all_methods_have() -> None:
    trials = [
        trial(PLAIN, 1.0),
        trial(PLAIN, 1.2, seed=2),
        trial("DP item mean", 1.05),
        trial("DP item mean", 0.95, seed=2),
    ]
    (cell,) = regret.judged([CELLS["r01"]], [*trials, trial(PLAIN, 9.0, seed=3)])
    assert cell.regret == pytest.approx(0.1)


def test_a_default_with_features_is_judged_against_the_same_without() -> None:
    trials = [trial(PLAIN, 0.8), trial(WITH_FEATURES, 0.9), trial("DP item mean", 1.0)]
    (cell,) = regret.judged([CELLS["r01"]], trials)
    assert (cell.ours, cell.best) == (WITH_FEATURES, PLAIN)
    assert cell.regret == pytest.approx(0.125)
    (plain,) = regret.judged([CELLS["r01"]], trials, features=False)
    assert (plain.ours, plain.regret) == (PLAIN, 0.0)


def test_the_summary_has_median_ninth_decile_and_worst_of_each_epsilon() -> None:
    trials = []
    for number, cell in enumerate(invented()[:11]):
        trials += [trial(PLAIN, 1.0 + number / 100, cell=cell.name), trial("DP item mean", 1.0, cell=cell.name)]
    lines = regret.summary(regret.judged(invented(), trials), by="all")
    assert lines == [f"| all | {at} | 11 | 5.00 % | 9.00 % | 10.00 % | 0% | 0% |" for at in ("1", "all")]


def test_a_rise_is_judged_by_paired_users() -> None:
    users = np.array([0.01, -0.01, 0.02, -0.02])
    trials = [trial(PLAIN, 1.0, influence=users), trial(PLAIN, 1.03, epsilon=2.0, influence=-users)]
    (rise,) = regret.rises([CELLS["r01"]], trials)
    assert (rise.low, rise.high) == (1.0, 2.0)
    assert rise.worse == pytest.approx(0.03)
    assert rise.error == pytest.approx(np.sqrt((2 * users) @ (2 * users) * 4 / 3))
    assert not rise.beyond_chance
    assert dataclasses.replace(rise, worse=0.08).beyond_chance
    ranked = [trial(PLAIN, 0.5, 0.4, influence=users), trial(PLAIN, 0.4, 0.6, epsilon=2.0, influence=users)]
    (fall,) = regret.rises([CELLS["r01"]], ranked)
    assert fall.worse == pytest.approx(0.1)
    assert fall.beyond_chance


def test_the_commands_list_run_report_and_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--cells", "held-out", "--most", "20000"]) == 0
    assert capsys.readouterr().out.split()[0] == "r02"
    picked = ["--log", str(tmp_path), "--cells", "r01", "--epsilon", "1", "--seeds", "1"]
    assert main(["report", *picked]) == 1
    assert "no cell" in capsys.readouterr().err
    assert main(["run", *picked, "--methods", "DPAM,DP item mean"]) == 0
    assert "1/1 r01" in capsys.readouterr().err
    picture = tmp_path / "regret.png"
    assert main(["report", *picked, "--picture", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "| r01 | tuned | 500 x 100, rank 0, signal 0 | 1 |" in shown
    assert "in 0 of 0 steps" in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["run", "--cells", "r01"]) == 1
    assert "--log" in capsys.readouterr().err


def test_more_epsilon_never_makes_the_default_worse_by_more_than_a_standard_error(tmp_path: Path) -> None:
    """On three small cells of ratings, of which two are held out.

    Splits and noise follow from a seed, so that a default that holds the promise at this one gives no false alarm. At
    seeds 1 to 12 one of 108 steps rose by more than a standard error, by 1.4 of one: with other seeds, the test would
    fail by chance in 34 % of all cases at most (one-sided 95 % limit of 1 in 12).
    """
    plan = Plan([CELLS[name] for name in ("r01", "r02", "r16")], (1.0, 2.0, 4.0, 8.0), (1,), (PLAIN,))
    changes = regret.rises(plan.cells, _run(plan, tmp_path))
    assert len(changes) == 9
    assert [change for change in changes if change.beyond_chance] == []


def _run(plan: Plan, folder: Path) -> list[Trial]:
    computed: list[Trial] = []
    scores.run(plan, folder, on_trial=lambda made, _: computed.append(made))
    return computed


def _refuse() -> Any:
    raise AssertionError("data were made where no score is missing")
