"""`odp simulate`: a task on a data set, on this machine."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odp.cli.console import console, print_json, results_console, resume_with, steps
from odp.cli.data_options import SplitAt, as_written, takes_labelled_table
from odp.cli.engines import LOCAL, Address, EngineName, computing_on
from odp.cli.exporting import check_export, export_run
from odp.cli.outputs import check_apart, output_file, output_folder, writing_file
from odp.errors import ConfigurationError

if TYPE_CHECKING:
    from odp.algorithms.choices import Question
    from odp.algorithms.experiment import Experiment, NamedData
    from odp.research.simulation.engine import RunResult
    from odp.tasks.task import Task


class Features(StrEnum):
    """Which public item features a model uses."""

    AUTO = "auto"
    DATA = "data"
    NONE = "none"


@takes_labelled_table
def simulate(
    columns: dict[str, Any],
    task: Annotated[
        Path | None, typer.Argument(help="Task file (TOML), as `odp task new` writes it \\[default: --preset auto].")
    ] = None,
    data: Annotated[
        str, typer.Option(help="Folder or file of a known form, or a name such as 'synthetic'.")
    ] = "synthetic",
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings in place of a task file: auto (by the size of the data) or ml-1m \\[default: auto]."
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="With --preset: ε of the budget per user; 'inf' is without privacy \\[default: 8]."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="With --preset: δ of the budget, below 1 / users \\[default: 1e-6].")
    ] = None,
    features: Annotated[
        Features | None,
        typer.Option(
            help="Public item features: data is those of the data set (genres, years), auto is also its titles and "
            "--item-texts; the training learns how much each tells "
            "\\[default: as in the task file; with --preset, data]."
        ),
    ] = None,
    no_features: Annotated[bool, typer.Option("--no-features", help="The same as --features none.")] = False,
    item_texts: Annotated[
        Path | None,
        typer.Option(
            help="Public texts of items (.csv or .jsonl): a key 'item', the others are texts. Implies --features auto."
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(help="Begin with the items of an earlier model, which --save-start wrote.", exists=True),
    ] = None,
    save_start: Annotated[
        Path | None,
        typer.Option(callback=output_file, help="Write the trained items (.npz) as the start of other models."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            callback=output_file,
            help="Write the trained items for other tools (.npz, .parquet, .onnx or .index), or a classifier (.npz).",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split, the samples and the noise.")] = 1,
    noise: Annotated[
        bool, typer.Option(help="--no-noise shows what the noise costs; a run without noise is not private.")
    ] = True,
    baselines: Annotated[
        bool, typer.Option(help="Compare with baselines on the same split, tuned by six trials each.")
    ] = True,
    output: Annotated[
        Path | None, typer.Option(callback=output_folder, help="Folder for run.json, which `odp report` reads.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(callback=output_file, help="Page about the run (.html), as `odp report` writes it."),
    ] = None,
    split: SplitAt = None,
    held_out: Annotated[
        int | None, typer.Option(help="Implicit feedback: test on this many users, who take no part in training.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            callback=output_folder, help="Folder that keeps the run after every round; the same command resumes."
        ),
    ] = None,
    engine: EngineName = LOCAL,
    address: Address = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Simulate a task with the same computations that devices run. Without arguments: invented ratings at ε = 8.

    The ratings of each user are split 80/10/10 into training, validation and test, or at one moment (--split). A task
    of labelled examples takes a table with a column for each feature, the label and the user (--user), of whose rows
    a tenth is for tests, or those from one moment on (--split, by the column --time); or an .npz file of arrays: each
    feature, the label, `user`, and `test` where some are test examples.
    """
    from odp.algorithms.experiment import NamedData, experiment_of
    from odp.algorithms.registry import starting_for
    from odp.datasets.catalogue import catalogue_keys
    from odp.datasets.examples import ExamplesSplit
    from odp.datasets.splitting import TimeCut, only_tested
    from odp.research.simulation.record import plain
    from odp.tasks.task import Task

    check_apart(
        {
            "the task file": task,
            "--data": Path(data) if Path(data).is_file() else None,
            "--item-texts": item_texts,
            "--start": start,
            "--save-start": save_start,
            "--export": export,
            "--report": report,
        }
    )
    if report is not None and report.suffix not in (".html", ".htm"):
        raise ConfigurationError(f"--report writes a page: give a name that ends in .html (got {str(report)!r})")
    cut = None if split is None else TimeCut.parse(split)
    if cut is not None and held_out is not None:
        raise ConfigurationError("Expected --split or --held-out, not both: each says who is tested")
    named = NamedData(data, cut=cut, **columns)
    choice = _features(features, none=no_features, texts=item_texts)
    planned = _planned(
        task, named, preset=preset, epsilon=epsilon, delta=delta, features=choice, texts=item_texts, start=start
    )
    named = named.numbered_by(getattr(getattr(planned, "model", None), "catalogue", None))
    if not isinstance(planned, Task):
        from odp.cli.answers import simulate_task

        for name, value in (
            ("--features", choice),
            ("--held-out", held_out),
            ("--split", split),
            ("--checkpoint", checkpoint),
            ("--report", report),
            ("--save-start", save_start),
            ("--export", export),
            ("--engine", None if engine == LOCAL else engine),
        ):
            if value is not None:
                raise ConfigurationError(f"{name} is for models: a question has one round and nothing to train")
        ratings = NamedData(data, **as_written(columns)).ratings
        simulate_task(planned, ratings, seed=seed, noise=noise, output=output, json=json)
        return
    if save_start is not None:
        starting_for(planned.definition())
        catalogue_keys(named.ratings)
    if export is not None:
        check_export(planned, export)
    experiment = experiment_of(planned, named, seed=seed, held_out=held_out)
    summary, rounds = _train(
        planned,
        experiment,
        seed=seed,
        noise=noise,
        baselines=baselines,
        checkpoint=checkpoint,
        output=output,
        json=json,
        report=report,
        engine=(engine, address),
        begun=start,
        save_start=None if save_start is None else (save_start, named),
        export=None if export is None else (export, named),
    )
    if cut is not None:
        parts = experiment.split
        later = parts.only_tested if isinstance(parts, ExamplesSplit) else only_tested(parts)
        summary["split"] = {"at": split, **({} if later is None else later.to_json())}
    if json:
        print_json(plain(summary), rows=rounds)


def _train(
    task: Task,
    experiment: Experiment,
    *,
    seed: int,
    noise: bool,
    baselines: bool,
    checkpoint: Path | None,
    output: Path | None,
    json: bool,
    report: Path | None,
    engine: tuple[str, str | None],
    begun: Path | None,
    save_start: tuple[Path, NamedData] | None,
    export: tuple[Path, NamedData] | None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Runs the task, prints tables, writes its record and its page; returns what ``--json`` and ``--csv`` say."""
    from rich.table import Table

    from odp.algorithms.registry import algorithm_for, starting_for
    from odp.datasets.catalogue import catalogue_keys
    from odp.evaluation.comparison import spending, spending_table
    from odp.models.left_out import left_out_in_words
    from odp.models.warm_start import WarmStart
    from odp.research.simulation.engine import RoundResult, simulate as run
    from odp.research.simulation.inputs import SIMULATION, count_note, notes, sampling_note
    from odp.research.simulation.record import plain, run_record, tested, write_record
    from odp.research.simulation.report import render_html
    from odp.research.simulation.verdict import verdict

    out, split = console(), experiment.split
    lines = [SIMULATION, *notes(experiment.population), *sampling_note(task), *count_note(task)]
    if begun is not None:
        lines.append(
            f"the start {begun} ({WarmStart.load(begun).origin or 'it does not say how it was trained'}) is not part of"
            " ε: the training is private for people of that model as well only if it was, and then both ε add up"
        )
    if not noise:
        lines.append("noise is off: this run shows what privacy costs, and protects nobody")
    lines += experiment.notes(noise=noise)
    for line in lines:
        out.print(f"note: {line}")
    rows: list[tuple[str, ...]] = []
    planned = len(algorithm_for(task.definition()).planned_releases())
    with computing_on(*engine) as (chosen, workers), steps(out, "simulating") as shown:

        def on_users(number: int, users: int, rounds: int) -> None:
            population = split.train.n_users
            note = f"round {number}: {users:,} of {population:,} users{workers.summary()}"
            shown.advance(number * population + users, rounds * population, note)

        def on_round(result: RoundResult) -> None:
            about = left_out_in_words(result.left_out)
            after = "; training is over, the model is tested" if result.round + 1 == planned else ""
            shown.step(f"round {result.round}: {experiment.headline(result.metrics)} {about}".rstrip() + after)
            cells = (str(result.round), str(result.contributions), f"{result.epsilon:.4f}")
            rows.append((*cells, *experiment.cells(result.metrics), f"{result.seconds:.1f}", *filter(None, [about])))

        resume_with(
            "--checkpoint FOLDER keeps a run after every round"
            if checkpoint is None
            else f"the same command goes on from the last round in {checkpoint}"
        )
        finished = run(
            task, split, seed=seed, noise=noise, on_round=on_round, on_users=on_users, checkpoint=checkpoint,
            engine=chosen,
        )  # fmt: skip
    workers.print(out)
    spent = spending(finished.charges, delta=finished.delta) if finished.noisy else ()
    results = results_console(machine=json)
    about = ("figures are",) if left_out_in_words(finished.left_out) else ()
    table = Table("round", "devices", "ε spent", *experiment.columns, "seconds", *about)
    for row in rows:
        table.add_row(*row)
    results.print(table)
    if spent:
        results.print(spending_table(spent))
    metrics = experiment.final_metrics(finished)
    compared = experiment.compare(finished, metrics, baselines=baselines, out=results)
    if "baselines" in compared:
        spent_epsilon = finished.epsilon if finished.noisy else None
        said = verdict(plain({**tested(metrics), **compared, "epsilon": spent_epsilon}))
        results.print(f"{said.text} {said.judgement}")
    rounds = [result.to_json() for result in finished.rounds]
    if output is not None or report is not None:
        record = run_record(
            kind="simulation",
            task=task,
            split=experiment.tested,
            rounds=rounds,
            charges=finished.charges,
            metrics=metrics,
            seed=seed,
            noise=finished.noisy,
            baselines=compared.get("baselines"),
            diagnostics=experiment.diagnose(finished),
            totals=finished.totals,
            notes=lines,
            left_out=finished.left_out,
        )
        record["standard_errors"] = compared.get("standard_errors")
        if report is not None:
            with writing_file(report):
                report.write_text(render_html(plain(record)), encoding="utf-8")
            results.print(f"page: {report}")
    if output is not None:
        results.print(f"run: {write_record(output, record)}; `odp report {output}` makes a page of it")
    if save_start is not None:
        file, data = save_start
        start = starting_for(task.definition()).warm_start(finished.model, catalogue_keys(data.ratings))
        dataclasses.replace(start, origin=_origin(finished)).save(file)
        results.print(f"start: {file}; `odp simulate --start {file}` begins with it")
    if export is not None:
        export_run(finished, *export, out=results)
    summary = finished.to_json() | {"spending": [asdict(entry) for entry in spent], "notes": lines} | compared
    return summary, rounds


def _origin(finished: RunResult) -> str:
    """What is known of the privacy of a start."""
    if not finished.noisy:
        return "trained without noise, not private"
    return f"simulated, ε = {finished.epsilon:.6g} and δ = {finished.delta:g} per user"


def _features(chosen: Features | None, *, none: bool, texts: Path | None) -> Features | None:
    """What the three options say together. Raises ConfigurationError where they contradict each other."""
    if none and chosen not in (None, Features.NONE):
        raise ConfigurationError(f"Expected --features {chosen} or --no-features, not both")
    chosen = Features.NONE if none else chosen
    if texts is not None and chosen not in (None, Features.AUTO):
        raise ConfigurationError("--item-texts goes with --features auto")
    return Features.AUTO if texts is not None else chosen


def _planned(
    path: Path | None,
    data: NamedData,
    *,
    preset: str | None,
    epsilon: float | None,
    delta: float | None,
    features: Features | None,
    texts: Path | None,
    start: Path | None,
) -> Task | Question:
    """The task of a file, or else of a preset. Raises ConfigurationError where both are given."""
    from odp.algorithms.choices import Question
    from odp.datasets import ItemTexts, auto_features, has_item_features, item_features
    from odp.datasets.catalogue import catalogue_keys
    from odp.models.warm_start import WarmStart
    from odp.research.simulation.presets import preset_task
    from odp.tasks.file import load_task
    from odp.tasks.task import Task

    if path is not None and preset is not None:
        raise ConfigurationError("Expected a task file or --preset, not both")
    if path is None and "label" in data.options:
        raise ConfigurationError(
            f"--label is for a task of labelled examples: `odp data check {data.name} --label .. --output check` "
            "writes its file"
        )
    if path is None:
        ratings = data.ratings
        return preset_task(
            "auto" if preset is None else preset,
            ratings,
            epsilon=8.0 if epsilon is None else epsilon,
            delta=1e-6 if delta is None else delta,
            features=(
                auto_features(ratings, None if texts is None else ItemTexts.read(texts))
                if features is Features.AUTO
                else has_item_features(ratings)
                if features is None
                else features is Features.DATA
            ),
            start=None if start is None else WarmStart.load(start),
        )
    for name, value in (("--epsilon", epsilon), ("--delta", delta)):
        if value is not None:
            raise ConfigurationError(f"{name} goes with --preset; a task file has its own budget in [privacy]")
    task = load_task(path)
    if not isinstance(task, (Task, Question)):
        raise ConfigurationError(
            f"{path} has a task without rounds: simulate it by odp.load_task({str(path)!r}).simulate(people, ..)"
        )
    if not isinstance(task, Task):
        if start is not None:
            raise ConfigurationError("--start is for models: a question has one round and nothing to train")
        return task
    if features is not None:
        model = task.factorization
        matrix: Any = item_features(data.ratings) if features is Features.DATA else None
        if features is Features.AUTO:
            matrix = auto_features(data.ratings, None if texts is None else ItemTexts.read(texts))
        task = dataclasses.replace(task, model=dataclasses.replace(model, item_features=matrix))
    if start is not None:
        model = task.factorization
        begun = dataclasses.replace(model, start=WarmStart.load(start), item_keys=catalogue_keys(data.ratings))
        task = dataclasses.replace(task, model=begun)
    return task
