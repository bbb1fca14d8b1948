"""`odp simulate`: a task on a data set, on this machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from odp.cli.console import console, print_json
from odp.cli.outputs import output_folder

if TYPE_CHECKING:
    import rich.console

    from odp.datasets import Ratings
    from odp.task import Question, Task


class Console(Protocol):
    """The module ``console`` of a training's package: how a terminal shows a simulation of it."""

    def simulate(
        self,
        task: Task,
        data: str,
        ratings: Ratings,
        *,
        seed: int,
        noise: bool,
        baselines: bool,
        checkpoint: Path | None,
        held_out: int | None,
        output: Path | None,
        out: rich.console.Console,
    ) -> dict[str, Any]:
        """Runs the task on the data set ``data``, prints its figures to ``out`` and writes the record into ``output``.

        Returns:
          what ``--json`` prints.
        """
        ...


def simulate(
    task: Annotated[
        Path | None, typer.Argument(help="Task file (TOML), as `odp task new` writes it; or use --preset.")
    ] = None,
    data: Annotated[
        str, typer.Option(help="Folder or file of a known form, or a name such as 'synthetic'.")
    ] = "synthetic",
    preset: Annotated[
        str | None, typer.Option(help="Settings in place of a task file: auto (by the size of the data) or ml-1m.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="With --preset: ε of the budget per user; 'inf' is without privacy \\[default: 8]."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="With --preset: δ of the budget, below 1 / users \\[default: 1e-6].")
    ] = None,
    features: Annotated[
        bool | None,
        typer.Option(
            help="Public item features: those of the data set (genres, years), or none "
            "\\[default: as in the task file; with --preset, those of the data set]."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split, the samples and the noise.")] = 1,
    noise: Annotated[
        bool, typer.Option(help="--no-noise shows what the noise costs; a run without noise is not private.")
    ] = True,
    baselines: Annotated[bool, typer.Option(help="Compare with baselines on the same split.")] = True,
    output: Annotated[
        Path | None, typer.Option(callback=output_folder, help="Folder for run.json, which `odp report` reads.")
    ] = None,
    held_out: Annotated[
        int | None, typer.Option(help="Implicit feedback: number of test users who take no part in training.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            callback=output_folder, help="Folder that saves the run after every round, to continue a stopped run."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Simulate a task with the same computations that devices run.

    The ratings of each user are split 80/10/10 into training, validation and test.
    """
    from odp.algorithms.choices import trainings
    from odp.algorithms.registry import part_of
    from odp.datasets import load
    from odp.errors import ConfigurationError
    from odp.simulation.record import plain
    from odp.task import Task

    ratings = load(data)
    planned = _planned(task, ratings, preset=preset, epsilon=epsilon, delta=delta, features=features)
    if not isinstance(planned, Task):
        from odp.cli.answers import simulate_task

        for name, value in (("--features", features), ("--held-out", held_out), ("--checkpoint", checkpoint)):
            if value is not None:
                raise ConfigurationError(f"{name} is for models: a question has one round and nothing to train")
        simulate_task(planned, ratings, seed=seed, noise=noise, output=output, json=json)
        return
    training = next(name for name, kind in trainings().items() if isinstance(planned.training, kind))
    module: Console = part_of(training, "console")
    summary = module.simulate(
        planned,
        data,
        ratings,
        seed=seed,
        noise=noise,
        baselines=baselines,
        checkpoint=checkpoint,
        held_out=held_out,
        output=output,
        out=console(),
    )
    if json:
        print_json(plain(summary))


def _planned(
    path: Path | None,
    ratings: Ratings,
    *,
    preset: str | None,
    epsilon: float | None,
    delta: float | None,
    features: bool | None,
) -> Task | Question:
    """The task of a file, or of a preset. Raises ConfigurationError where both are given, or none."""
    from odp.datasets import has_item_features, item_features
    from odp.errors import ConfigurationError
    from odp.simulation.presets import PRESETS, preset_task
    from odp.task import Task
    from odp.task_file import load_task

    if path is not None and preset is not None:
        raise ConfigurationError("Expected a task file or --preset, not both")
    if path is None:
        if preset is None:
            raise ConfigurationError(
                f"Expected a task file or --preset ({', '.join(PRESETS)}); `odp task new` writes a file"
            )
        return preset_task(
            preset,
            ratings,
            epsilon=8.0 if epsilon is None else epsilon,
            delta=1e-6 if delta is None else delta,
            features=has_item_features(ratings) if features is None else features,
        )
    for name, value in (("--epsilon", epsilon), ("--delta", delta)):
        if value is not None:
            raise ConfigurationError(f"{name} goes with --preset; a task file has its own budget in [privacy]")
    task = load_task(path)
    if features is None or not isinstance(task, Task):
        return task
    matrix = item_features(ratings) if features else None
    return dataclasses.replace(task, model=dataclasses.replace(task.model, item_features=matrix))
