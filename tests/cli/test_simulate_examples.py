"""`odp simulate` and `odp report` of a task of labelled examples."""

from __future__ import annotations

import csv
import html
import json
from pathlib import Path

import numpy as np
import pytest

import odp as platform
from odp.errors import OdpError
from odp.tasks.file import render_task

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
    assert "This model has test accuracy 0." in text
    assert "<dt>users</dt><dd>300</dd>" in text
    assert "<dt>training examples</dt><dd>3,000</dd>" in text


def test_labels_that_are_numbers_have_a_loss_alone(odp, tmp_path):
    data = platform.Examples({"x": platform.Tensor((6,), -1.0, 1.0)}, label_low=-1.0, label_high=1.0)
    task = written(tmp_path, model=platform.Glm("linear", 6), data=data)
    printed = odp("simulate", task, "--data", DATA, "--output", tmp_path / "run")
    assert "test loss" in printed.err + printed.out
    odp("report", tmp_path / "run")
    (page,) = (tmp_path / "run").glob("*.html")
    assert "This model has test loss 0." in page.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "ml-1m"], "labelled examples"),
        (["--data", DATA, "--held-out", "3"], "--held-out"),
        (["--data", DATA, "--features", "data"], "odp.MatrixFactorization"),
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


def test_categories_and_text_run_from_a_task_file_and_a_file_of_text(odp, tmp_path):
    data = platform.Examples(
        {"place": platform.Category(("home", 'a "bar"\n')), "hour": platform.Category(24),
         "said": platform.Text(("rain", "sun"), 3), "letters": platform.Text(("a", "\n", "\x7f"), 2, unit="character")}
    )  # fmt: skip
    path = written(tmp_path, model=platform.Glm("multinomial", 31, 2), data=data)
    assert platform.load_task(path).data == data
    kinds = np.arange(1200) % 2
    said = np.array(["Sun and sun", "rain, rain"])[kinds]
    np.savez(
        tmp_path / "people.npz", place=np.array(["home", 'a "bar"\n'])[kinds], hour=np.arange(1200) % 24, said=said,
        letters=np.array(["a", "\nb"])[kinds], label=kinds, user=np.arange(1200) // 4,
    )  # fmt: skip
    printed = odp("simulate", path, "--data", tmp_path / "people.npz", "--output", tmp_path / "run", "--json")
    assert printed.json["test_accuracy"] > 0.9
    assert odp("simulate", path, "--data", DATA, "--output", tmp_path / "other", "--json").json["test_loss"] > 0
    np.savez(tmp_path / "bad.npz", place=kinds, hour=said, said=said, letters=said, label=kinds, user=kinds)
    with pytest.raises(OdpError, match="expected 'hour' to be numbers"):
        odp("simulate", path, "--data", tmp_path / "bad.npz")


def test_an_unknown_kind_of_feature_is_refused_by_name(odp, tmp_path):
    path = written(tmp_path)
    text = path.read_text()
    assert 'kind = "tensor"' in text
    path.write_text(text.replace('kind = "tensor"', 'kind = "tenser"'))
    with pytest.raises(OdpError, match="has kind 'tenser'; did you mean 'tensor'"):
        odp("task", "show", path)


def test_rows_that_are_left_out_stand_beside_every_figure(odp, tmp_path):
    reason = "whose 'x' is not a number"
    generator = np.random.default_rng(3)
    features = generator.uniform(-1, 1, (2500, 6)).astype(np.float32)
    features[:200, 0] = np.nan
    features[500:1676, 1] = np.nan
    np.savez(
        tmp_path / "people.npz", x=features, label=(features[:, 2] > 0).astype(int), test=np.arange(2500) >= 500,
        user=np.arange(2500) % 50,
    )  # fmt: skip
    model, cohort = platform.Glm("logistic", 6), platform.Cohort(minimum=10, goal=50)
    task, run = written(tmp_path, model=model, cohort=cohort), tmp_path / "run"
    printed = odp("simulate", task, "--data", tmp_path / "people.npz", "--output", run, "--json")
    as_csv = odp("simulate", task, "--data", tmp_path / "people.npz", "--csv").out
    said = " ".join((printed.err + printed.out).split())
    left = f"of 824 of 2,000 test examples; left out: 1,176 {reason}; trained on 300 of 500 examples; "
    left += f"left out: 200 {reason}"
    (line,) = [line for line in (printed.err + printed.out).splitlines() if line.startswith("test accuracy")]
    assert left in said
    assert "of 824 of" in line
    assert "figures are" in said
    assert printed.json["left_out"]["test"] == {
        "asked": 2000, "used": 824, "left_out": 1176, "reasons": {reason: 1176}
    }  # fmt: skip
    rows = list(csv.DictReader(as_csv.splitlines()))
    assert [(row["test_used"], row["test_left_out"], row["left_out"]) for row in rows] == [("824", "1176", left)] * 4
    record = json.loads((run / "run.json").read_text())
    assert record["left_out"]["train"]["reasons"] == {reason: 200}
    assert odp("report", run, "--json").json["left_out"] == printed.json["left_out"]
    (page,) = run.glob("*.html")
    text = html.unescape(page.read_text())
    assert f"({left})" in text
    assert f"<dd>824 of 2,000; left out: 1,176 {reason}</dd>" in text
    whole = tmp_path / "whole"
    features[:] = np.nan_to_num(features)
    np.savez(
        tmp_path / "people.npz", x=features, label=(features[:, 2] > 0).astype(int), test=np.arange(2500) >= 500,
        user=np.arange(2500) % 50,
    )  # fmt: skip
    odp("simulate", task, "--data", tmp_path / "people.npz", "--output", whole)
    odp("report", run, whole, "--output", tmp_path / "both.html")
    text = html.unescape((tmp_path / "both.html").read_text())
    assert left in text
    assert "all examples" in text


def visits(file: Path) -> Path:
    """Numbers of 40 users over ten days, the tenth of which has a new user and a new class."""
    chance = np.random.default_rng(5)
    lines = ["member,x,label,day"]
    for day in range(1, 10):
        for member in range(40):
            x = chance.random()
            lines.append(f"m{member},{x:.4f},{'yes' if x > 0.5 else 'no'},2001-01-{day:02d}")
    lines += ["new,0.5,maybe,2001-01-10", "m1,0.1,no,2001-01-10", "m2,0.9,yes,2001-01-10"]
    file.write_text("\n".join(lines) + "\n")
    return file


def timed_task(folder: Path, features: dict[str, object]) -> Path:
    data = platform.Examples(features, classes=("no", "yes", "maybe"))  # type: ignore[arg-type]
    return written(
        folder, model=platform.Glm("multinomial", len(features), 3), data=data,
        cohort=platform.Cohort(minimum=10, goal=40), privacy=platform.UserLevelDP(epsilon=8, delta=1e-3),
    )  # fmt: skip


def test_a_labelled_table_is_cut_at_one_moment_and_what_only_the_tests_have_is_counted(odp, tmp_path):
    table = visits(tmp_path / "visits.csv")
    task = timed_task(tmp_path, {"x": platform.Tensor((), 0.0, 1.0)})
    options = ("--data", table, "--user", "member", "--time", "day", "--split", "time:2001-01-10")
    printed = odp("simulate", task, *options, "--output", tmp_path / "run", "--json")
    told = "only the test part has 1 of 41 users and 1 of 3 classes"
    assert told in " ".join(printed.err.split())
    assert told in printed.json["notes"]
    assert printed.json["split"] == {
        "at": "time:2001-01-10", "users_only_tested": 1, "classes_only_tested": 1,
    }  # fmt: skip
    assert "on 3 examples" in printed.out + printed.err
    assert told in json.dumps(json.loads((tmp_path / "run" / "run.json").read_text())["notes"])


def test_a_cut_of_examples_needs_a_column_of_times(odp, tmp_path):
    table = visits(tmp_path / "visits.csv")
    task = timed_task(tmp_path, {"x": platform.Tensor((), 0.0, 1.0)})
    odp_of = ("simulate", task, "--split", "time:0.9", "--user", "member", "--data")
    with pytest.raises(OdpError, match=r"visits.csv: no column of times was recognised; name one with time=.."):
        odp(*odp_of, table)
    renamed = tmp_path / "named.csv"
    renamed.write_text(table.read_text().replace(",day\n", ",date\n"))
    assert "only the test part has 1 of 41 users" in " ".join(odp(*odp_of, renamed).err.split())
    with pytest.raises(OdpError, match=r"--split is for tables: .* its examples have no times"):
        odp("simulate", task, "--split", "time:0.9", "--data", DATA)
    both = timed_task(tmp_path, {"x": platform.Tensor((), 0.0, 1.0), "day": platform.Tensor((), 0.0, 1.0)})
    with pytest.raises(OdpError, match="'day' is read by the task and cannot be the time"):
        odp("simulate", both, "--split", "time:0.9", "--user", "member", "--time", "day", "--data", table)
