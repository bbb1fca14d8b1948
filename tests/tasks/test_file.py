"""Task files: the same tasks as in Python, and errors that name the line."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

import odp
from odp.errors import ConfigurationError, OdpError, PrivacyError
from odp.tasks.file import load_task, parse_task, render_task

_TEXT = """\
name = "films"

[model]
items = 40
rank = 2

[data]
low = 1
high = 5.0

[privacy]
epsilon = 8
delta = 1e-6

[cohort]
goal = 130
"""

_names = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,63}", fullmatch=True)
_shares = st.floats(1e-3, 0.4)


@st.composite
def _tasks(draw: st.DrawFn) -> odp.Task:
    items = draw(st.integers(1, 5000))
    rank = draw(st.integers(0, min(items, 8)))
    low = draw(st.floats(-1e6, 1e6 - 1))
    high = draw(st.floats(low, 1e6, exclude_min=True))
    clips = st.none() | st.floats(1e-3, 1e3)
    bound = draw(st.none() | st.integers(1, min(items, 4096)))
    minimum = draw(st.integers(1, 1000))
    try:
        return odp.Task(
            name=draw(_names),
            population=draw(st.just("") | _names),
            model=odp.MatrixFactorization(items=items, rank=rank),
            data=odp.RatingsData(table=draw(_names), low=low, high=high),
            privacy=odp.UserLevelDP(
                epsilon=draw(st.floats(0.5, 100) | st.integers(1, 100) | st.just(math.inf)),
                delta=draw(st.floats(1e-9, 1e-4)),
                max_items_per_user=bound,
            ),
            training=odp.DPAM(
                steps=draw(st.none() | st.integers(1, 6)),
                row_clip=draw(clips),
                bias_target_clip=draw(clips),
                factor_target_clip=draw(clips),
                weighting=draw(st.sampled_from(["adaptive", "uniform"])),
                weight_exponent=draw(st.floats(0, 1)),
                count_share=draw(_shares),
                bias_share=draw(_shares),
                centre=draw(st.none() | st.floats(-10, 10)),
                item_ridge=draw(st.floats(0, 1e9)),
                start_seed=draw(st.integers(0, 2**64 - 1)),
            ),
            cohort=odp.Cohort(
                minimum=minimum,
                goal=draw(st.none() | st.integers(minimum, 5000)),
                round_seconds=draw(st.integers(1, 10**7)),
            ),
        )
    except OdpError:
        assume(False)
        raise


@settings(max_examples=150, deadline=None)
@given(_tasks())
def test_what_is_rendered_is_read_back_as_an_equal_task(task: odp.Task) -> None:
    again = parse_task(render_task(task))
    assert again == task
    assert again.definition() == task.definition()


def test_a_file_says_the_same_as_python(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text(_TEXT)
    assert load_task(tmp_path / "task.toml") == odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=40, rank=2),
        data=odp.RatingsData(low=1.0, high=5.0),
        privacy=odp.UserLevelDP(epsilon=8.0, delta=1e-6),
        cohort=odp.Cohort(goal=130),
    )


def test_numbers_of_numpy_are_rendered_as_numbers() -> None:
    task = odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=40),
        data=odp.RatingsData(low=np.float64(1), high=np.float64(5)),
        privacy=odp.UserLevelDP(epsilon=np.float64(8), delta=np.float64(1e-6)),
    )
    assert parse_task(render_task(task)) == task


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rank = 2", "rnak = 2", r"Unknown key 'rnak' in t.toml:5 \[model\]; did you mean 'rank'"),
        ('name = "films"', 'nam = "films"', r"Unknown key 'nam' in t.toml:1; did you mean 'name'"),
        ("[privacy]", "[privcy]", r"Unknown key 'privcy' in t.toml:11; did you mean 'privacy'"),
        ("rank = 2", 'kind = "forest"', r"t.toml:5: Unknown kind 'forest' in \[model\]; valid: matrix_factorization"),
        ("rank = 2", "kind = [1]", r"t.toml:5: Unknown kind \[1\] in \[model\]"),
        ("rank = 2", "rank = 65", r"t.toml:5: Expected rank=65"),
        ("rank = 2", "rank = true", r"t.toml:5: Expected rank=True"),
        ("rank = 2", "rank = 41", r"t.toml:5: Expected rank=41 to be at most items=40"),
        ("high = 5.0", "high = 0.5", r"t.toml:8: Expected low=1.0 to be below high=0.5"),
        ("high = 5.0", "high = nan", r"t.toml:9: Expected data_high=nan"),
        ("epsilon = 8", "epsilon = 1979-05-27", r"t.toml:12: Expected epsilon="),
        ("epsilon = 8", "epsilon = 1" + "0" * 400, r"t.toml:11: \[privacy\] holds a number that is too large"),
        ("epsilon = 8", "epsilon = 1" + "0" * 5000, r"t.toml: not valid TOML"),
        ("delta = 1e-6", "", r"t.toml:11: \[privacy\] lacks 'delta'"),
        ("delta = 1e-6", "delta = 1e-6\nmax_items_per_user = 41", r"t.toml:14: Expected max_items_per_user=41"),
        ('name = "films"', 'name = "Films"', r"t.toml:1: Expected name='Films'"),
        ('name = "films"', 'name = "films"\npopulation = 0', r"t.toml:2: Expected population=0"),
        ('name = "films"', "", r"t.toml: missing 'name'; `odp task new`"),
        ("[model]\nitems = 40\nrank = 2", "model = 5", r"t.toml:3: Expected \[model\] to be a table"),
        ("[model]\nitems = 40\nrank = 2", "model = {items = 40, rnak = 2}", r"'rnak' in t.toml:3 \[model\]"),
        ("[model]\nitems = 40\nrank = 2", "[[model]]\nitems = 40", r"t.toml:3: Expected \[model\] to be a table"),
        ("rank = 2", "rank = 8\n[training]\nsteps = 0", r"t.toml:7: Expected steps=0 to be 1 or more for rank=8"),
        ("rank = 2", "rank = ", r"t.toml: not valid TOML: .*line 5"),
        ('name = "films"', "name = " + "[" * 20_000, r"t.toml: not valid TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(old: str, new: str, message: str) -> None:
    assert old in _TEXT
    with pytest.raises(ConfigurationError, match=message) as caught:
        parse_task(_TEXT.replace(old, new, 1), where="t.toml")
    assert "\n" not in str(caught.value)


_QUALITY = """\
name = "quality"

[model]
kind = "glm"
family = "logistic"
features = 3

[data]
kind = "examples"
features = { x = { shape = [3], low = -1, high = 1 } }

[evaluation]
of = "of.npy"
metrics = ["loss", "accuracy"]

[privacy]
epsilon = 2
delta = 1e-6
"""


def _quality(**changes: object) -> odp.Evaluation:
    given: dict[str, object] = {
        "name": "quality", "model": odp.Glm("logistic", 3), "data": odp.Examples({"x": odp.Tensor((3,), -1, 1)}),
        "of": np.arange(4), "metrics": ["loss", "accuracy"], "privacy": odp.UserLevelDP(epsilon=2, delta=1e-6),
    }  # fmt: skip
    return odp.Evaluation(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("added", "changes"),
    [
        ("", {}),
        ('against = "b.npy"\nloss_high = 3', {"against": np.ones(4), "loss_high": 3.0}),
        (
            "most_examples = 9\n[evaluation.personal]\nrate = 1\nheld_out = 0.2",
            {"most_examples": 9, "personal": odp.PersonalTraining(rate=1.0, held_out=0.2)},
        ),
    ],
    ids=["one model", "two models", "personal"],
)
def test_an_evaluation_is_read_with_its_parameters_and_rendered(
    tmp_path: Path, added: str, changes: dict[str, object]
) -> None:
    np.save(tmp_path / "of.npy", np.arange(4.0)[:, None])
    np.save(tmp_path / "b.npy", np.ones(4))
    path, task = tmp_path / "quality.toml", _quality(**changes)
    path.write_text(_QUALITY.replace('"accuracy"]', f'"accuracy"]\n{added}'))
    read = load_task(path)
    assert read == task
    assert read.definition() == task.definition()
    rendered = render_task(read)
    for name in ("of", "against"):
        file = "of.npy" if name == "of" else "b.npy"
        rendered = rendered.replace(f"# {name}: 4 parameters, SHA-256", f'{name} = "{file}" #')
    path.write_text(rendered)
    assert load_task(path).definition() == task.definition()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('of = "of.npy"', "", r"quality.toml:12: \[evaluation\] lacks 'of'"),
        ('"of.npy"', "3", r"quality.toml:13: Expected of to be the path of a .npy file"),
        ('"of.npy"', '"none.npy"', r"quality.toml:13: cannot read of .*none.npy: No such file"),
        ('"of.npy"', '"quality.toml"', r"quality.toml:13: .* is not a .npy file of numbers"),
        ('"of.npy"', '"short.npy"', r"quality.toml:13: Expected of to be the 4 finite parameters"),
        ('"accuracy"', '"acuracy"', r"quality.toml:14: .*did you mean 'accuracy'"),
        ("metrics =", "metric =", r"Unknown key 'metric' in .*quality.toml:14 \[evaluation\]"),
        ("[evaluation]", "[evaluation]\npersonal = { rat = 1 }", r"quality.toml:1[23]: .*rat"),
        ("[evaluation]", "[evaluation]\npersonal = 3", r"quality.toml:13: Expected personal to be an odp.Personal"),
        ('kind = "glm"\nfamily = "logistic"\nfeatures = 3', "items = 3", r"Expected model to be an odp.Glm"),
        ('[model]\nkind = "glm"\nfamily = "logistic"\nfeatures = 3', "", r"missing 'model'"),
        ("[privacy]", "[training]\nsteps = 2\n[privacy]", r"Unknown key 'training' in .*quality.toml:16"),
    ],
)
def test_a_mistake_in_an_evaluation_is_one_line_with_its_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    np.save(tmp_path / "of.npy", np.arange(4.0))
    np.save(tmp_path / "short.npy", np.arange(3.0))
    assert old in _QUALITY
    path = tmp_path / "quality.toml"
    path.write_text(_QUALITY.replace(old, new, 1))
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_task(path)
    assert "\n" not in str(caught.value)


def test_a_delta_that_is_no_guarantee_keeps_its_kind_and_gets_its_line() -> None:
    with pytest.raises(PrivacyError, match=r"t.toml:13: Expected delta=0.01 to be below 1/users"):
        parse_task(_TEXT.replace("1e-6", "1e-2"), where="t.toml")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60), st.integers(0, len(_TEXT)))
def test_any_text_is_a_task_or_an_error_of_ours(inserted: str, place: int) -> None:
    with contextlib.suppress(OdpError):
        parse_task(_TEXT[:place] + inserted + _TEXT[place:])


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot read the task file"), (b"\xff\xfe", "is not UTF-8 text"), (b"#" * (2**20 + 1), "is larger than")],
)
def test_a_file_that_is_none_is_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "task.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        load_task(path)


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigurationError, match="is larger than"):
        load_task("/dev/zero")


LOCAL = """
name = "clicks"

[draw_and_discard]
epsilon = 2.77
crosses = [["member", "kind"]]

[draw_and_discard.features]
member = { kind = "boolean" }
kind = { kind = "category", classes = ["news", "sport", "other"] }
age = { kind = "number", low = 0, high = 100, clip = true }
"""


def test_a_task_without_rounds_is_read_and_written() -> None:
    task = parse_task(LOCAL)
    assert task == odp.DrawAndDiscard(
        name="clicks",
        features={
            "member": odp.Boolean(), "kind": odp.Category(("news", "sport", "other")),
            "age": odp.Number(low=0, high=100, clip=True),
        },
        crosses=[("member", "kind")],
        epsilon=2.77,
    )  # fmt: skip
    assert parse_task(render_task(task)) == task
    assert task.definition() == parse_task(render_task(task)).definition()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epsilon = 2.77", "epsilon = -1.0", r"f.toml:5: .*epsilon"),
        ("epsilon = 2.77", "epsilom = 2.77", r"f.toml:5 \[draw_and_discard\].*did you mean 'epsilon'"),
        ("epsilon = 2.77\n", "", "lacks 'epsilon'"),
        ('kind = "boolean"', 'kind = "bolean"', "did you mean 'boolean'"),
        ('["member", "kind"]', '["member", "kin"]', "kin"),
        ("[draw_and_discard]", "[cohort]\nminimum = 20\n\n[draw_and_discard]", "'cohort' in f.toml:4"),
    ],
)
def test_a_mistake_in_a_task_without_rounds_is_shown_where_it_is(old: str, new: str, message: str) -> None:
    assert old in LOCAL
    with pytest.raises(odp.errors.ConfigurationError, match=message):
        parse_task(LOCAL.replace(old, new), where="f.toml")
