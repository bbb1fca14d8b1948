"""`odp simulate` and `odp report` of a task of labelled examples."""

from __future__ import annotations

from pathlib import Path

import pytest

import odp as platform
from odp.errors import OdpError
from odp.task_file import render_task

DATA = "synthetic:n_users=300,examples_per_user=10"


def written(folder: Path, **changes: object) -> Path:
    given: dict[str, object] = {
        "name": "kinds", "model": platform.Glm("multinomial", 6, 3),
        "data": platform.Examples({"x": platform.Tensor((6,), -1.0, 1.0)}),
        "privacy": platform.UserLevelDP(epsilon=8, delta=1e-4),
        "training": platform.DPFedAvg(rounds=4, rate=0.5, clip=1.0), "cohort": platform.Cohort(minimum=10, goal=300),
    }  # fmt: skip
    path = folder / "task.toml"
    path.write_text(render_task(platform.Task(**{**given, **changes})))  # type: ignore[arg-type]
    return path


def test_a_run_on_invented_examples_is_shown_recorded_and_reported(odp, tmp_path):
    printed = odp("simulate", written(tmp_path), "--data", DATA, "--output", tmp_path / "run", "--json")
    assert printed.json["test_accuracy"] > 0.5
    assert 7.9 < printed.json["epsilon"] <= 8.0
    assert "test accuracy" in printed.err + printed.out
    odp("report", tmp_path / "run")
    (page,) = (tmp_path / "run").glob("*.html")
    text = page.read_text()
    assert "Test accuracy 0." in text
    assert "300 users, 3,000 training examples" in text


def test_labels_that_are_numbers_have_a_loss_alone(odp, tmp_path):
    data = platform.Examples({"x": platform.Tensor((6,), -1.0, 1.0)}, label_low=-1.0, label_high=1.0)
    task = written(tmp_path, model=platform.Glm("linear", 6), data=data)
    printed = odp("simulate", task, "--data", DATA, "--output", tmp_path / "run")
    assert "test loss" in printed.err + printed.out
    odp("report", tmp_path / "run")
    (page,) = (tmp_path / "run").glob("*.html")
    assert "Test loss 0." in page.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "ml-1m"], "labelled examples"),
        (["--data", DATA, "--held-out", "3"], "--held-out"),
        (["--data", DATA, "--features"], "odp.MatrixFactorization"),
    ],
)
def test_what_does_not_fit_examples_is_refused(odp, tmp_path, options, message):
    with pytest.raises(OdpError, match=message):
        odp("simulate", written(tmp_path), *options)


def test_a_task_is_shown_with_a_line_for_each_number(odp, tmp_path):
    shown = odp("task", "show", written(tmp_path)).out
    assert all(line.startswith("#") for line in shown.splitlines()[-6:])
    assert '# local = {"rate": 0.5' in shown
    assert "# round 3: update: sensitivity 1" in shown
