"""`odp reproduce`: published experiments on this platform, with what was published beside what is found."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from odp.cli.console import console, print_json, results_console, resume_with, steps
from odp.cli.data_options import print_reading, takes_table
from odp.cli.engines import LOCAL, Address, EngineName, computing_on
from odp.cli.outputs import output_folder, writing
from odp.errors import ConfigurationError

_EXPERIMENTS = "odp.research.reproductions"

app = typer.Typer(
    help="Run published experiments again, and show them beside what was published.", no_args_is_help=True
)


@app.callback()
def _commands(context: typer.Context, engine: EngineName = LOCAL, address: Address = None) -> None:
    """Experiments by name; they are in the repository, and not in the installed package."""
    if importlib.util.find_spec(_EXPERIMENTS) is None:
        raise ConfigurationError(
            "the experiments of `odp reproduce` are in ODP's repository, not in the installed package: clone the "
            "repository, run `pip install --editable .` there, then the same command"
        )
    from odp.research.simulation.engines.seam import using

    if engine != LOCAL or address is not None:
        chosen, _ = context.with_resource(computing_on(engine, address))
        context.with_resource(using(chosen))
    resume_with("no part of a run is kept, and the same command starts anew")


@app.command("geyer")
def geyer(
    data: Annotated[Path, typer.Option(help="Folder with the four files of MNIST; `odp data fetch mnist` loads them.")],
    clients: Annotated[int, typer.Option(help="Number of clients: 100, 1000 or 10000.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the clients' shards, of their order and of the noise.")] = 1,
    baseline: Annotated[bool, typer.Option("--baseline", help="Train once more without noise.")] = False,
    output: Annotated[
        Path | None, typer.Option(callback=output_folder, help="Folder for geyer-CLIENTS-SEED.json and .png.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Federated training on MNIST with privacy for whole clients, of two digits each.

    Geyer, Klein, Nabi 2017, table 1. ε is 8, all rounds and the clip norm charged; data are simulated clients.
    """
    from odp.research.reproductions.geyer import population, reproduce, task_of
    from odp.research.reproductions.geyer_results import draw, table_of
    from odp.research.simulation.engine import RoundResult
    from odp.research.simulation.inputs import SIMULATION

    out, task = console(), task_of(clients)
    with steps(out, "reading the pictures") as shown:
        people = population(data, clients, seed=seed)
        shown.step("training")

        def on_users(number: int, users: int, rounds: int) -> None:
            shown.advance(number * clients + users, rounds * clients)

        def on_round(result: RoundResult) -> None:
            shown.step(f"round {result.round}: accuracy {result.metrics['test_accuracy']:.4f}")

        reproduction = reproduce(task, people, seed=seed, baseline=baseline, on_round=on_round, on_users=on_users)
    _show(
        [table_of(reproduction), f"{reproduction.seconds:.1f} s; {SIMULATION}"],
        output,
        f"geyer-{clients}-{seed}",
        reproduction.to_json(),
        lambda path: draw(path, reproduction),
        json_output=json_output,
    )


@app.command("shakespeare")
def shakespeare(
    data: Annotated[Path, typer.Option(help="Plays as speeches: a text, or a folder that has it as input.txt.")],
    seed: Annotated[int, typer.Option(help="Seed of the order of examples and of the noise.")] = 1,
    context: Annotated[int, typer.Option(help="How many characters the model reads.")] = 3,
    rounds: Annotated[int, typer.Option(help="Rounds of one stream.")] = 60,
    baseline: Annotated[bool, typer.Option("--baseline", help="Train once more without noise.")] = False,
    output: Annotated[
        Path | None, typer.Option(callback=output_folder, help="Folder for shakespeare-SEED.json and .png.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Prediction of the next character with DP-FTRL and privacy for whole speakers, at ε = 8.

    Beside Reddi et al. 2021, who train a larger model on more speakers without privacy.
    """
    from odp.research.reproductions.shakespeare import population, reproduce, task_of
    from odp.research.reproductions.shakespeare_results import draw, table_of
    from odp.research.simulation.engine import RoundResult
    from odp.research.simulation.inputs import SIMULATION

    out = console()
    with steps(out, "reading the plays") as shown:
        people = population(data, context=context)
        task = task_of(people.train.n_users, context=context, rounds=rounds)

        def on_round(result: RoundResult) -> None:
            accuracy = result.metrics["test_accuracy"]
            shown.step(f"round {result.round + 1} of {rounds}: accuracy {accuracy:.4f}")

        reproduction = reproduce(task, people, seed=seed, baseline=baseline, on_round=on_round)
    _show(
        [table_of(reproduction), f"{reproduction.seconds:.1f} s; {SIMULATION}"],
        output,
        f"shakespeare-{seed}",
        reproduction.to_json(),
        lambda path: draw(path, reproduction),
        json_output=json_output,
    )


@app.command("two-tower")
@takes_table
def two_tower(
    columns: dict[str, Any],
    data: Annotated[str, typer.Option(help="Ratings: a name such as 'ml-1m', or a folder.")] = "ml-1m",
    epsilon: Annotated[float, typer.Option(help="ε of the budget per user.")] = 8.0,
    delta: Annotated[float, typer.Option(help="δ of the budget, below 1 / users.")] = 1e-6,
    rounds: Annotated[int, typer.Option(help="Of the towers.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the split, the samples and the noise.")] = 1,
    baseline: Annotated[bool, typer.Option("--baseline", help="Train the towers once more without noise.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Two towers beside DPAM on MovieLens, at an equal budget and on the same split.

    Needs TensorFlow, as the extra `keras` installs it. Some four minutes for MovieLens-1M on two cores.
    """
    from odp._system.extras import require
    from odp.datasets import load, random_split
    from odp.research.simulation.engine import RoundResult
    from odp.research.simulation.inputs import SIMULATION

    require("tensorflow", "keras", to="make the towers", extra="keras")
    from odp.research.reproductions.movielens_towers import compare

    out = console()
    with steps(out, "towers") as shown:

        def on_round(result: RoundResult) -> None:
            shown.step(f"towers, round {result.round + 1} of {rounds}: loss {result.metrics['test_loss']:.4f}")

        ratings = load(data, **columns)
        print_reading(ratings.notes)
        split = random_split(ratings, seed=seed)
        comparison = compare(
            split, epsilon=epsilon, delta=delta, rounds=rounds, seed=seed, baseline=baseline, on_round=on_round
        )
    out = results_console(machine=json_output)
    out.print(comparison.table())
    out.print(SIMULATION)
    if json_output:
        print_json(comparison.to_json())


@app.command("privunit")
def privunit(
    data: Annotated[
        Path | None, typer.Option(help="Folder with the four files of MNIST; without one, MNIST is left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The first seed of people, reports and noise.")] = 1,
    runs: Annotated[int, typer.Option(help="How many seeds of logistic regression.")] = 3,
    output: Annotated[
        Path | None, typer.Option(callback=output_folder, help="Folder for privunit-SEED.json and .png.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Learning from reports that are private by themselves: logistic regression on 100,000 people, and MNIST.

    Bhowmick et al. 2018, sections 4.1 and 5. Says of each claim whether it holds. Some minutes on two cores.
    """
    from odp.research.reproductions.privunit import reproduce
    from odp.research.reproductions.privunit_results import claims_of, draw, pictures_of, table_of
    from odp.research.simulation.inputs import SIMULATION

    out = console()
    with steps(out, "drawing people") as shown:
        reproduction = reproduce(seed=seed, runs=runs, pictures=data, progress=shown.step)
    pictures = [pictures_of(reproduction)] if reproduction.mnist else []
    _show(
        [
            table_of(reproduction),
            *pictures,
            claims_of(reproduction),
            f"{reproduction.seconds:.1f} s; {SIMULATION}",
        ],
        output,
        f"privunit-{seed}",
        reproduction.to_json(),
        lambda path: draw(path, reproduction),
        json_output=json_output,
    )


@app.command("local")
def local(
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 1,
    repeats: Annotated[int, typer.Option(help="How often each histogram and mean is estimated.")] = 1000,
    output: Annotated[
        Path | None, typer.Option(callback=output_folder, help="Folder for local-SEED.json and .png.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Errors of randomized response, unary encoding, ScalarDP and local means, beside published formulas.

    Needs no data. Some 20 seconds.
    """
    from odp.research.reproductions.local import reproduce
    from odp.research.reproductions.local_results import draw, table_of
    from odp.research.simulation.inputs import SIMULATION

    out = console()
    with steps(out, "measuring errors"):
        reproduction = reproduce(seed=seed, repeats=repeats)
    _show(
        [table_of(reproduction), f"{reproduction.seconds:.1f} s; {SIMULATION}"],
        output,
        f"local-{seed}",
        reproduction.to_json(),
        lambda path: draw(path, reproduction),
        json_output=json_output,
    )


@app.command("drawdiscard")
def drawdiscard(
    data: Annotated[Path, typer.Option(help="Folder with the four files of MNIST; `odp data fetch mnist` loads them.")],
    seed: Annotated[int, typer.Option(help="Seed of the clients' pictures, the server's draws and the noise.")] = 1,
    passes: Annotated[int, typer.Option(help="Over all clients of MNIST.")] = 20,
    updates: Annotated[int, typer.Option(help="Of the known model without noise; 983068969 as published.")] = 10**8,
    output: Annotated[
        Path | None, typer.Option(callback=output_folder, help="Folder for drawdiscard-SEED.json and .png.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Draw and Discard, with privacy per feature and no trusted party: MNIST, and a model of known weights.

    Pihur et al. 2018, figures 2 to 4 and section V-C. Some five minutes on two cores.
    """
    import math

    from odp.research.reproductions import known_weights
    from odp.research.reproductions.drawdiscard import population, reproduce
    from odp.research.reproductions.drawdiscard_results import draw, known_table, table_of
    from odp.research.simulation.inputs import SIMULATION

    out = console()
    with steps(out, "reading the pictures") as shown:
        people = population(data, seed=seed)
        reproduction = reproduce(
            people, seed=seed, passes=passes, on_run=lambda done, of: shown.step(f"MNIST: {done} of {of} runs")
        )
        trained = []
        for level in (math.inf, 32.0, 16.0, 3.0):
            shown.step(f"known weights, ε of log {level:g}")
            level_updates = updates if math.isinf(level) else max(1, updates // 4)
            trained.append(known_weights.train(updates=level_updates, epsilon=math.log(level), seed=seed))
    figures = (
        f"{trained[0].rate:,.0f} updates of the known model per second; {reproduction.seconds:.1f} s of "
        f"MNIST; {SIMULATION}"
    )
    everything = {"mnist": reproduction.to_json(), "known_weights": [training.to_json() for training in trained]}
    _show(
        [table_of(reproduction), known_table(trained), figures],
        output,
        f"drawdiscard-{seed}",
        everything,
        lambda path: draw(path, reproduction),
        json_output=json_output,
    )


def _show(
    results: Sequence[Any],
    output: Path | None,
    name: str,
    summary: Mapping[str, Any],
    draw: Callable[[Path], None],
    *,
    json_output: bool,
) -> None:
    """Prints ``results``; the picture and all numbers of a run go to the folder ``output`` and to the last line."""
    out = results_console(machine=json_output)
    for result in results:
        out.print(result)
    if output is not None:
        with writing(output):
            output.mkdir(parents=True, exist_ok=True)
            draw(output / f"{name}.png")
            (output / f"{name}.json").write_text(json.dumps(summary, indent=1) + "\n")
        out.print(f"figure: {output / name}.png; all numbers: {output / name}.json")
    if json_output:
        print_json(summary)
