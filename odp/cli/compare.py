"""`odp compare`: this model beside every baseline at several budgets, on the same splits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odp.cli.console import console, print_json, results_console, resume_with, steps
from odp.cli.data_options import SplitAt, takes_table
from odp.cli.engines import LOCAL, Address, EngineName, computing_on
from odp.cli.outputs import output_file, output_folder, writing
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from odp.datasets.ratings import Split


@takes_table
def compare(
    columns: dict[str, Any],
    data: Annotated[
        str, typer.Option(help="Folder or file of a known form, or a name such as 'synthetic'.")
    ] = "synthetic",
    epsilons: Annotated[
        str, typer.Option(help="Values of ε per user, separated by commas; 'inf' is without privacy.")
    ] = "1,2,4,8",
    delta: Annotated[float, typer.Option(help="δ of the budget; below 1 / users.")] = 1e-6,
    seeds: Annotated[
        int, typer.Option(help="Number of runs, with seeds from 1; each splits at random where no split is published.")
    ] = 3,
    preset: Annotated[str, typer.Option(help="Settings of this model: auto or ml-1m.")] = "auto",
    permutation: Annotated[
        bool,
        typer.Option("--permutation", help="Split one permutation of all ratings, as published comparisons do."),
    ] = False,
    by_time: Annotated[
        bool, typer.Option("--by-time", help="Train on each user's past ratings, and test on the last tenth.")
    ] = False,
    split: SplitAt = None,
    output: Annotated[
        Path | None, typer.Option(callback=output_folder, help="Folder for comparison.json and comparison.png.")
    ] = None,
    engine: EngineName = LOCAL,
    address: Address = None,
    resume: Annotated[
        Path | None,
        typer.Option(callback=output_file, help="File that keeps finished runs: the same command goes on from them."),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Compare a model with every baseline under the same accounting.

    Every baseline takes the best of six settings on the validation part, which is not charged.
    The result is one table per metric, the chosen settings, one figure and one JSON file.
    """
    from odp import _validate
    from odp.algorithms.experiment import NamedData
    from odp.datasets.splitting import TimeCut, time_split
    from odp.research.simulation.comparing import TUNED, chosen_rows, compare as run, comparison_rows, draw_comparison
    from odp.research.simulation.inputs import notes

    _validate.integer(seeds=seeds, low=1, high=1000)
    if permutation + by_time + (split is not None) > 1:
        raise ConfigurationError("Expected one of --permutation, --by-time and --split")
    budgets = numbers(epsilons)
    out = console()
    cut = None if split is None else TimeCut.parse(split)
    named = NamedData(data, cut=cut, **columns)
    ratings = named.ratings
    for note in [*notes(ratings), *([] if cut is None else named.cut_notes(named.split(1)))]:
        out.print(f"note: {note}")
    past = time_split(ratings) if by_time else None

    def split_of(seed: int) -> Split:
        # By time there is one split: only the noise differs between runs.
        return named.split(seed) if past is None else past

    resume_with(
        "--resume FILE keeps finished runs; fewer --seeds or --epsilons end sooner"
        if resume is None
        else f"the same command goes on from the runs in {resume}"
    )
    with computing_on(engine, address) as (chosen, _), steps(out, "comparing") as progress:

        def on_score(method: str, epsilon: float, seed: int, scores: tuple[float, ...]) -> None:
            shown = ", ".join(f"{score:.4f}" for score in scores)
            progress.step(f"{method}, ε = {epsilon:g}, seed {seed}: {shown}")

        comparison = run(
            ratings,
            epsilons=budgets,
            delta=delta,
            seeds=range(1, seeds + 1),
            preset=preset,
            split_of=None if permutation else split_of,
            permuted=permutation,
            split_name=split or ("by-time" if by_time else "given"),
            on_score=on_score,
            engine=chosen,
            resume=resume,
        )
    shown = results_console(machine=json_output)
    for metric in comparison.metrics:
        shown.print(comparison_rows(comparison, metric))
    if comparison.tuned:
        shown.print(chosen_rows(comparison))
        shown.print(TUNED)
    shown.print(f"{comparison.seconds:.1f} s; every method that spends has (ε, δ) per user, all its releases included")
    shown.print(comparison.verdict)
    shown.print(comparison.statement)
    summary = comparison.to_json()
    if output is not None:
        with writing(output):
            output.mkdir(parents=True, exist_ok=True)
            draw_comparison(output / "comparison.png", comparison)
            (output / "comparison.json").write_text(json.dumps(summary, indent=1) + "\n")
        out.print(f"figure: {output / 'comparison.png'}; all scores: {output / 'comparison.json'}")
    if json_output:
        print_json(summary, rows=comparison.rows)


def numbers(text: str) -> list[float]:
    """The numbers of a list with commas. Raises ConfigurationError naming the part that is none."""
    parsed = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            raise ConfigurationError(
                f"Expected epsilons={text!r} to be numbers with commas: {part!r} is none"
            ) from None
        if not value > 0:
            raise ConfigurationError(f"Expected epsilons={text!r} to be numbers above 0: {part.strip()} is not")
        parsed.append(value)
    return parsed
