"""`odp retrain`: a schedule of trainings under one lifetime budget, on this machine."""

from __future__ import annotations

import itertools
import json as json_format
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odp.cli.console import console, print_json, results_console, steps
from odp.cli.data_options import SplitAt, print_reading, takes_table
from odp.cli.outputs import output_folder, writing

if TYPE_CHECKING:
    from odp.research.simulation.retraining import Retraining, Training


@takes_table
def retrain(
    columns: dict[str, Any],
    weeks: Annotated[
        list[str] | None,
        typer.Argument(help="One data set per training, in order \\[default: invented ratings that drift]."),
    ] = None,
    every: Annotated[str, typer.Option(help="Time between trainings: 7d, 2w, 1y.")] = "7d",
    horizon: Annotated[str, typer.Option(help="How long the lifetime budget has to last.")] = "1y",
    lifetime_epsilon: Annotated[float, typer.Option(help="ε of all trainings together, per user.")] = 20.0,
    delta: Annotated[float, typer.Option(help="δ of the lifetime; below 1 / users.")] = 1e-6,
    rule: Annotated[str, typer.Option(help="How the budget is divided: uniform or front-loaded.")] = "uniform",
    drift: Annotated[
        float | None, typer.Option(help="Invented ratings: share of tastes that is new each week \\[default: 0.02].")
    ] = None,
    new_items: Annotated[
        int | None, typer.Option(help="Invented ratings: items that come, and go, each week \\[default: 5].")
    ] = None,
    by_month: Annotated[
        bool,
        typer.Option(help="One form of MovieLens: a training after each month of its time stamps, tested on the next."),
    ] = False,
    split: SplitAt = None,
    scratch: Annotated[
        bool, typer.Option(help="Train once more with each training from nothing, at the same budget.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the data and the noise.")] = 1,
    noise: Annotated[
        bool, typer.Option(help="--no-noise shows what the noise costs; a run without noise is not private.")
    ] = True,
    output: Annotated[
        Path | None,
        typer.Option(callback=output_folder, help="Folder for retraining.json, retraining.png and start.npz."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Retrain a model of ratings again and again, each training beginning with the release before it.

    A schedule that the lifetime budget cannot pay is refused, with what it can. With --by-month, a device trains on all
    its ratings up to the end of a month, and is tested on those of the next one.
    """
    from odp._system.files.durability import write_whole
    from odp.datasets.monthly import monthly_ratings
    from odp.datasets.splitting import TimeCut
    from odp.errors import ConfigurationError, PrivacyError
    from odp.pictures.charts import draw_retraining
    from odp.research.simulation.inputs import SIMULATION
    from odp.research.simulation.record import plain
    from odp.research.simulation.retraining import retrain as run
    from odp.trainings.device_limits import DeviceLimits
    from odp.trainings.schedule import Schedule

    schedule = Schedule(
        every=every, horizon=horizon, lifetime_epsilon=lifetime_epsilon, delta=delta, rule=rule
    )  # fmt: skip
    invented = {name: value for name, value in (("drift", drift), ("new_items", new_items)) if value is not None}
    if weeks and invented:
        option = "--" + next(iter(invented)).replace("_", "-")
        raise ConfigurationError(f"{option} is for invented ratings: leave it out, or the data sets")
    if columns and (by_month or not weeks):
        raise ConfigurationError(
            f"--{next(iter(columns)).replace('_', '-')} is for tables: leave it out, or give a table per training"
        )
    if by_month and len(weeks or ()) != 1:
        raise ConfigurationError("--by-month is for one data set with times: give its name, such as ml-1m")
    if split is not None and (by_month or not weeks):
        raise ConfigurationError("--split is for data sets by name: leave it out with --by-month and invented ratings")
    cut = None if split is None else TimeCut.parse(split)
    months = list(itertools.islice(monthly_ratings(weeks[0]), schedule.trainings)) if weeks and by_month else None
    out = console()
    out.print(f"note: {SIMULATION}")
    try:
        DeviceLimits().check(schedule)
    except PrivacyError as declined:
        out.print(f"note: {declined}")
    if not noise:
        out.print("note: noise is off: this run shows what privacy costs, and protects nobody")
    datasets = months or weeks
    count = min(schedule.trainings, len(datasets)) if datasets else schedule.trainings
    ways = {"from the release before": True, **({"from nothing each time": False} if scratch else {})}
    retrainings: dict[str, Retraining] = {}
    with steps(out, "retraining") as shown:
        for name, warm in ways.items():

            def on_training(done: Training, name: str = name) -> None:
                place = len(retrainings) * count + done.number + 1
                shown.advance(place, len(ways) * count, f"{name}: test RMSE {done.test_rmse:.4f}")

            data: Iterator[Any] = (
                iter(months) if months else _weeks(weeks, schedule.trainings, columns, seed=seed, **invented)
            )
            retrainings[name] = run(schedule, data, warm=warm, noise=noise, seed=seed, cut=cut, on_training=on_training)
    ours = retrainings["from the release before"]
    print_reading(ours.notes)
    results = results_console(machine=json)
    results.print(_table(retrainings))
    spent = f"ε = {ours.epsilon:.4g} of {lifetime_epsilon:g}, δ = {delta:g}" if noise else "no noise, not private"
    results.print(f"{len(ours.trainings)} trainings, one every {every}: {spent}, per user")
    summary = ours.to_json()
    if scratch:
        summary["from_nothing"] = retrainings["from nothing each time"].to_json()["trainings"]
    if output is not None:
        with writing(output):
            output.mkdir(parents=True, exist_ok=True)
        draw_retraining(
            output / "retraining.png",
            {
                name: [training.test_rmse for training in retraining.trainings]
                for name, retraining in retrainings.items()
            },
            epsilon=[training.epsilon_so_far for training in ours.trainings],
            budget=lifetime_epsilon,
            reference=[training.user_mean_rmse for training in ours.trainings],
            title="test error and ε over the trainings of a schedule",
        )
        ours.start.save(output / "start.npz")
        write_whole(output / "retraining.json", [json_format.dumps(plain(summary), indent=1).encode() + b"\n"])
        results.print(f"figure: {output / 'retraining.png'}; the last items as a start: {output / 'start.npz'}")
    if json:
        print_json(summary, rows=ours.rows)


def _weeks(
    paths: list[str] | None, trainings: int, columns: dict[str, Any], *, seed: int, **invented: Any
) -> Iterator[Any]:
    from odp.datasets import load
    from odp.datasets.drifting import drifting_ratings

    if paths:
        return (load(path, **columns) for path in paths)
    return iter(drifting_ratings(weeks=trainings, seed=seed, **invented))


def _table(retrainings: dict[str, Retraining]) -> Any:
    """Mean test RMSE by quarter of the schedule: one row per way."""
    from rich.table import Table

    count = len(next(iter(retrainings.values())).trainings)
    cuts = [round(place * count / 4) for place in range(5)] if count >= 8 else [0, count]
    spans = list(itertools.pairwise(cuts))
    table = Table("each training begins", *(f"{first + 1} to {last}" for first, last in spans), title="test RMSE")
    for name, retraining in retrainings.items():
        table.add_row(name, *(f"{retraining.mean_rmse(first, last):.4f}" for first, last in spans))
    return table
