"""`odp tune`: a search for settings, and its cost in ε."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from odp.cli.console import console, print_json, results_console, resume_with, steps
from odp.cli.data_options import SplitAt, print_reading, takes_table
from odp.cli.engines import LOCAL, Address, EngineName, computing_on
from odp.cli.outputs import output_file, writing_file


@takes_table
def tune(
    columns: dict[str, Any],
    proxy: Annotated[
        str | None,
        typer.Option(
            help="Public or invented data of the same shape as the population's, such as "
            "'synthetic:n_users=..,n_items=..,ratings_per_user=..' or ml-1m \\[default: 2,000 invented users]."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="The private data, with a list of all items; needs --charge.")
    ] = None,
    charge: Annotated[bool, typer.Option("--charge", help="Charge every trial on --data, and its score.")] = False,
    epsilon: Annotated[float, typer.Option(help="ε of the budget of one training, per user.")] = 8.0,
    delta: Annotated[float, typer.Option(help="δ of the budget; below 1 / users.")] = 1e-6,
    features: Annotated[
        bool | None,
        typer.Option(help="Public item features: those of the data set, or none \\[default: those, if any]."),
    ] = None,
    split: SplitAt = None,
    trials: Annotated[int, typer.Option(help="Number of settings to try; the recommended ones come first.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the settings and the split; on proxy data also of the noise.")] = 1,
    output: Annotated[Path | None, typer.Option(callback=output_file, help="File for the JSON of all trials.")] = None,
    engine: EngineName = LOCAL,
    address: Address = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Search for good settings by random trials.

    Trials on proxy data are free; every trial on private data is charged.
    """
    from rich.table import Table

    from odp.datasets import load
    from odp.datasets.splitting import TimeCut, only_tested
    from odp.errors import ConfigurationError
    from odp.privacy.accounting import epsilon as epsilon_of
    from odp.privacy.events import Event
    from odp.research.simulation.tuning import PROXY, Trial, tune as run

    if data is not None and proxy is not None:
        raise ConfigurationError("Expected one of --proxy and --data, not both")
    if data is not None and not charge:
        raise ConfigurationError(
            f"--data {data!r} counts as private, and a score is a release about it: add --charge, "
            "which charges every trial, or search on public data with --proxy"
        )
    if charge and data is None:
        raise ConfigurationError("--charge needs --data; proxy data cost nothing")
    private = data is not None
    source = data if data is not None else proxy if proxy is not None else PROXY
    cut = None if split is None else TimeCut.parse(split)
    out = console()
    ratings: Any = load(source, whole_catalogue=private, **columns) if columns or cut is not None else source
    # Of private data, the counts of a note would be a release that nobody is charged for.
    for note in [] if cut is None or private else cut.notes(ratings, only_tested(cut.split(ratings, seed=seed))):
        out.print(f"note: {note}")
    table = Table(
        "trial", "rank", "features", "steps", "K", "bias share", "user ridge", "item ridge", "exponent", "score",
        *(["ε so far"] if private else []),
    )  # fmt: skip
    charged: list[Event] = []
    resume_with("the same command starts anew with the same trials; fewer --trials end sooner")
    with computing_on(engine, address) as (chosen, _), steps(out, "searching") as progress:

        def on_trial(number: int, trial: Trial) -> None:
            charged.extend(trial.charges)
            spent = [f"{epsilon_of(charged, delta=delta):.4f}"] if private else []
            progress.step(f"trial {number + 1} of {trials}: {' at ε so far '.join([f'{trial.score:.4f}', *spent])}")
            settings = trial.settings()
            table.add_row(
                str(number + 1),
                str(settings["rank"]),
                str(settings["features"]),
                "by rule" if settings["steps"] is None else str(settings["steps"]),
                str(settings["max_items_per_user"]),
                *(f"{settings[name]:g}" for name in ("bias_share", "user_ridge", "item_ridge", "weight_exponent")),
                f"{trial.score:.4f}",
                *spent,
            )

        ratings = load(source, whole_catalogue=private, **columns)
        print_reading(ratings.notes)
        search = run(
            ratings,
            epsilon=epsilon,
            delta=delta,
            trials=trials,
            seed=seed,
            private=private,
            features=features,
            cut=cut,
            on_trial=on_trial,
            engine=chosen,
        )
    shown = results_console(machine=json_output)
    shown.print(table)
    best = ", ".join(f"{name}={value}" for name, value in search.best.settings().items())
    shown.print(f"best: {best}; validation RMSE {search.best.score:.4f}{' (noisy)' if private else ''}")
    shown.print(search.statement)
    summary = search.to_json()
    if output is not None:
        with writing_file(output):
            output.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    if json_output:
        print_json(summary, rows=search.rows)
