"""`odp simulate` on ratings: RMSE round by round, beside baselines on the same split."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from odp.datasets import Ratings
    from odp.task import Task


def simulate(
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
    out: Console,
) -> dict[str, Any]:
    """Runs the task, prints its tables and writes the record into ``output``; returns what ``--json`` prints."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    from odp.algorithms.dpam.diagnostics import diagnose
    from odp.algorithms.dpam.signal import weak_signal
    from odp.datasets import random_split
    from odp.errors import ConfigurationError
    from odp.simulation.baselines import baselines as compute
    from odp.simulation.comparison import comparison_table, spending_table
    from odp.simulation.engine import RoundResult
    from odp.simulation.engine import simulate as run
    from odp.simulation.inputs import SIMULATION, notes, sampling_note
    from odp.simulation.record import run_record, write_record
    from odp.simulation.spending import spending

    if held_out is not None:
        raise ConfigurationError("--held-out is for implicit feedback: ratings of known users are predicted")
    split = random_split(ratings, seed=seed)
    said = [SIMULATION, *notes(ratings), *sampling_note(task)]
    if not noise:
        said.append("noise is off: this run shows what privacy costs, and protects nobody")
    elif ratings.n_items == task.model.items:
        weak = weak_signal(task, split.train)
        said += [] if weak is None else [str(weak)]
    for line in said:
        out.print(f"note: {line}")
    table = Table("round", "devices", "ε spent", "validation RMSE", "test RMSE", "seconds")
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[users]}"), TimeRemainingColumn()
    with Progress(*columns, console=out, transient=True) as bar:
        shown = bar.add_task("simulating", total=None, users="")

        def on_users(number: int, users: int, rounds: int) -> None:
            population = split.train.n_users
            bar.update(shown, total=rounds * population, completed=number * population + users)
            bar.update(shown, users=f"round {number}: {users:,} of {population:,} users")

        def on_round(result: RoundResult) -> None:
            bar.update(shown, description=f"test RMSE {result.test_rmse:.4f}")
            table.add_row(
                str(result.round),
                str(result.contributions),
                f"{result.epsilon:.4f}",
                f"{result.validation_rmse:.4f}",
                f"{result.test_rmse:.4f}",
                f"{result.seconds:.1f}",
            )

        finished = run(
            task,
            split,
            seed=seed,
            noise=noise,
            on_round=on_round,
            on_users=on_users,
            checkpoint=checkpoint,
        )
    out.print(table)
    spent = spending(finished.charges, delta=finished.delta) if finished.noisy else ()
    if spent:
        out.print(spending_table(spent))
    summary = finished.to_json()
    summary["spending"] = [asdict(entry) for entry in spent]
    summary["notes"] = said
    found = None
    if baselines:
        with out.status("baselines"):
            found = compute(task, split, seed=seed)
        out.print(comparison_table(found, finished.test_rmse, finished.epsilon, task.privacy.delta))
        summary["baselines"] = asdict(found)
    if output is not None:
        record = run_record(
            kind="simulation",
            task=task,
            split=split,
            rounds=[asdict(result) for result in finished.rounds],
            charges=finished.charges,
            test_rmse=finished.test_rmse,
            seed=seed,
            noise=finished.noisy,
            found=None if found is None else asdict(found),
            diagnostics=diagnose(task, split, finished.model),
            totals=finished.totals,
            notes=said,
        )
        out.print(f"run: {write_record(output, record)}; `odp report {output}` makes a page of it")
    return summary
