"""A question has ranges of its own: no scale of a table is guessed for it, in a simulation or on devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

import device_runtime
import odp
from device_runtime.host.provision import provision
from device_runtime.round.examples import examples
from device_runtime.store.store import Store, store_path
from odp.algorithms.quantiles.terms import Terms as QuantilesTerms
from odp.algorithms.registry import algorithm_for
from odp.algorithms.statistics.terms import Terms
from odp.cli.main import app
from odp.errors import ConfigurationError, DataError
from odp.models.left_out import LeftOut
from odp.protocol.wire.model import Slices

PEOPLE, SESSIONS = 60, 6
SECONDS = np.random.default_rng(7).integers(30, 901, (PEOPLE, SESSIONS))
SECONDS[::10, 0] = 0  # a session that ended at once is a session
MEDIAN = float(np.median(SECONDS))

PRIVACY = "[privacy]\nepsilon = 8\ndelta = 1e-4\n[cohort]\nminimum = 20\ngoal = 60\n"
MEDIAN_OF = f'name = "length"\n[quantiles]\nlow = 0\nhigh = 1200\nbins = 400\nat = [0.5]\n{PRIVACY}'
RANGES = f"""name = "length"
trust = "{{trust}}"
[queries.mean]
kind = "mean"
low = 0
high = 1200
max_records = {SESSIONS}
[queries.long]
kind = "histogram"
edges = [0, 1, 300, 600, 1200]
counts = "records"
clip = 10
{PRIVACY}"""


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """Whole seconds, which look like counts."""
    path = tmp_path / "sessions.csv"
    rows = [f"u{user},s{place},{SECONDS[user, place]}" for user in range(PEOPLE) for place in range(SESSIONS)]
    path.write_text("user,item,value\n" + "\n".join(rows) + "\n")
    return path


def task_of(folder: Path, text: str) -> tuple[Path, Any]:
    file = folder / "task.toml"
    file.write_text(text)
    return file, odp.load_task(file)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def simulated(file: Path, data: Path, monkeypatch: pytest.MonkeyPatch, *options: object) -> Any:
    """The answers that `odp simulate` got."""
    from odp.research.simulation import answers

    finished: list[Any] = []
    real = answers.simulate_answers
    monkeypatch.setattr(answers, "simulate_answers", lambda *a, **k: finished.append(real(*a, **k)) or finished[0])
    run("simulate", file, "--data", data, "--no-noise", *options)
    return finished[0]


def numbers_of_devices(state: Path, task: Any) -> npt.NDArray[np.float64]:
    """The sum of what the devices of a state folder contribute."""
    definition = task.definition()
    client = algorithm_for(definition).client()
    grid = (QuantilesTerms if isinstance(task, odp.Quantiles) else Terms).of(definition).grid
    nothing = Slices(0, np.zeros(0, np.int64), np.zeros((0, 0), np.float32), {})
    total = np.zeros(grid.size)
    for device in range(PEOPLE):
        with Store.open(store_path(state, device)) as store:
            payload, _ = client.contribute(nothing, examples(store, definition, now=0.0), round=0, seed=device)
        total += np.frombuffer(payload, "<i4") * grid.step
    return total


def devices_of(
    data: Path, state: Path, monkeypatch: pytest.MonkeyPatch, *options: object
) -> tuple[odp.data.Ratings, str]:
    """The stores that `odp device run` fills, and what it prints."""
    given: list[Any] = []

    class Ended:
        def join(self, timeout: float) -> bool:
            return True

    def start(config: Any, *, ratings: Any, examples: Any) -> Ended:
        given.append(ratings)
        provision(state, ratings)
        return Ended()

    monkeypatch.setattr(device_runtime, "start", start)
    printed = run("device", "run", "--population", "length", "--data", data, *options)
    return given[0], printed


def test_the_median_of_whole_seconds_is_right_on_the_command_line(
    tmp_path: Path, sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = task_of(tmp_path, MEDIAN_OF)
    assert simulated(file, sessions, monkeypatch).results[0.5].value == pytest.approx(MEDIAN, abs=6)


@pytest.mark.parametrize("load", [odp.load, lambda path, **how: odp.load(frame(path), **how)])
def test_the_median_of_whole_seconds_is_right_in_python(
    tmp_path: Path, sessions: Path, load: Callable[..., odp.data.Ratings]
) -> None:
    _, task = task_of(tmp_path, MEDIAN_OF)
    found = load(sessions, as_written=True)
    assert found.notes == ()
    assert not found.implicit
    assert not found.on_scale
    assert odp.simulate(task, found, noise=False).results[0.5].value == pytest.approx(MEDIAN, abs=6)
    declared = load(sessions, low=0, high=1200)
    assert odp.simulate(task, declared, noise=False).results[0.5].value == pytest.approx(MEDIAN, abs=6)


def frame(path: Path) -> Any:
    return pytest.importorskip("pandas").read_csv(path)


@pytest.mark.parametrize("trust", ["aggregator", "shuffle", "local"])
def test_means_and_histograms_of_whole_seconds_are_right_whoever_is_trusted(
    tmp_path: Path, sessions: Path, monkeypatch: pytest.MonkeyPatch, trust: str
) -> None:
    found = simulated(*[task_of(tmp_path, RANGES.format(trust=trust))[0], sessions, monkeypatch])
    assert found.exact.mean("mean").value == pytest.approx(SECONDS.mean(), abs=2)
    expected = np.histogram(SECONDS, bins=[0, 1, 300, 600, 1200])[0]
    assert expected[0] == 6
    np.testing.assert_allclose(found.exact["long"].counts, expected, atol=1)


def test_the_median_of_whole_seconds_is_right_on_devices(
    tmp_path: Path, sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratings, printed = devices_of(sessions, tmp_path / "devices", monkeypatch)
    assert "guessed" not in printed
    assert ratings.values.max() > 1
    _, task = task_of(tmp_path, MEDIAN_OF)
    counts = numbers_of_devices(tmp_path / "devices", task)
    answers = algorithm_for(task.definition()).answers({"quantiles": counts}, contributions=PEOPLE, epsilon=1.0)
    assert answers[0.5].value == pytest.approx(MEDIAN, abs=6)  # type: ignore[index]


def test_a_guess_that_is_used_is_printed_and_a_declared_scale_is_kept(
    tmp_path: Path, sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, printed = devices_of(sessions, tmp_path / "one", monkeypatch, "--implicit")
    assert seen.implicit
    assert "6 rows have a value of 0 or less" in printed
    scaled, _ = devices_of(sessions, tmp_path / "two", monkeypatch, "--low", "0", "--high", "900")
    assert (scaled.low, scaled.high) == (0, 900)
    bare = tmp_path / "bare.csv"
    bare.write_text("user,item\n" + "".join(f"u{user},a\n" for user in range(PEOPLE)))
    _, printed = devices_of(bare, tmp_path / "three", monkeypatch)
    assert "guessed: there are no values" in " ".join(printed.split())
    assert "1 items have ids that are no whole numbers from 0" in " ".join(printed.split())


@pytest.mark.parametrize("how", [{}, {"implicit": True}])
@pytest.mark.parametrize("text", [MEDIAN_OF, RANGES.format(trust="local"), RANGES.format(trust="aggregator")])
def test_values_that_were_read_as_seen_are_refused(
    tmp_path: Path, sessions: Path, how: dict[str, Any], text: str
) -> None:
    _, task = task_of(tmp_path, text)
    with pytest.raises(DataError, match=r"is about values, and rows of .* only say 'seen'") as refused:
        odp.simulate(task, odp.load(sessions, **how))
    assert ("guessed" in str(refused.value)) == (not how)


def test_a_model_takes_no_values_without_a_scale(sessions: Path) -> None:
    found = odp.load(sessions, as_written=True)
    task = odp.Task(
        name="model",
        model=odp.MatrixFactorization(items=found.n_items, rank=2),
        data=odp.RatingsData(low=0, high=900),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-4),
        cohort=odp.Cohort(minimum=20, goal=PEOPLE),
    )
    with pytest.raises(DataError, match="on no scale: load it with low"):
        odp.simulate(task, found)
    with pytest.raises(DataError, match="on no scale"):
        odp.compare(found, epsilons=(8,), seeds=(1,))
    with pytest.raises(ConfigurationError, match="as_written"):
        odp.load(sessions, as_written=True, low=0, high=900)


def test_values_that_are_no_number_are_refused_as_they_are_with_a_scale(sessions: Path) -> None:
    sessions.write_text(sessions.read_text() + "u0,s9,NaN\nu1,s9,1e39\nu2,s9,\n")
    with pytest.raises(DataError, match="3 of 363 rows are bad"):
        odp.load(sessions, as_written=True)
    found = odp.load(sessions, as_written=True, on_error="skip")
    assert found.n_ratings == PEOPLE * SESSIONS
    assert "3 bad rows were left out" in found.notes[0]


def test_things_that_happened_have_values_above_zero(tmp_path: Path, sessions: Path) -> None:
    """The table "events" has the rows above 0, in a simulation as on a device."""
    task = odp.Statistics(
        name="length",
        queries={
            "happened": odp.Histogram(edges=(0, 1200), counts="records", clip=10, table="events"),
            "all": odp.Histogram(edges=(0, 1200), counts="records", clip=10),
        },
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-4),
        cohort=odp.Cohort(minimum=20, goal=PEOPLE),
    )
    found = odp.load(sessions, as_written=True)
    run = odp.simulate(task, found, noise=False)
    assert run.exact["happened"].counts == pytest.approx([354], abs=0.5)
    assert run.exact["all"].counts == pytest.approx([360], abs=0.5)
    assert run.left_out["happened"] == LeftOut(360, {"whose value is 0 or less: nothing happened": 6})
    provision(tmp_path / "devices", found)
    terms = Terms.of(task.definition())
    numbers = numbers_of_devices(tmp_path / "devices", task)
    happened, everything = (numbers[part.place] / part.scale for part in terms.parts)
    assert happened == pytest.approx([354], abs=0.5)
    assert everything == pytest.approx([360], abs=0.5)


def test_implicit_models_refuse_rows_that_say_nothing(sessions: Path) -> None:
    found = odp.load(sessions, low=0, high=900)
    task = odp.Task(
        name="model",
        model=odp.MatrixFactorization(items=found.n_items, rank=2),
        data=odp.ImplicitData(),
        training=odp.ImplicitDPAM(),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-4),
        cohort=odp.Cohort(minimum=20, goal=PEOPLE),
    )
    with pytest.raises(DataError, match=r"\d rows of .* have a value of 0 or less"):
        odp.simulate(task, found)
