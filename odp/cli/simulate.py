"""`odp simulate`: a task on a data set, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from odp.cli.console import console, print_json


def simulate(
    task: Annotated[Path, typer.Argument(help="Task file (TOML); `odp task new` writes one.")],
    data: Annotated[
        str, typer.Option(help="Folder or file of a known form, or a name such as 'synthetic'.")
    ] = "synthetic",
    seed: Annotated[int, typer.Option(help="Decides split, samples and noise.")] = 1,
    noise: Annotated[
        bool, typer.Option(help="--no-noise shows what the noise costs; such a run is not private.")
    ] = True,
    baselines: Annotated[bool, typer.Option(help="Compare with baselines on the same split.")] = True,
    json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Simulate a task: the same computations as on devices, vectorised over users; 80/10/10 split of the ratings."""
    from rich.table import Table

    from odp.datasets import load, merge, random_split
    from odp.simulation.engine import RoundResult
    from odp.simulation.engine import simulate as run
    from odp.task_file import load_task

    out = console()
    planned = load_task(task)
    split = random_split(load(data), seed=seed)
    if not noise:
        out.print("noise is off: this run shows what privacy costs, and protects nobody")
    table = Table("round", "devices", "ε spent", "validation RMSE", "test RMSE", "seconds")
    with out.status("simulating") as status:

        def on_round(result: RoundResult) -> None:
            status.update(f"round {result.round} done: test RMSE {result.test_rmse:.4f}")
            table.add_row(
                str(result.round),
                str(result.contributions),
                f"{result.epsilon:.4f}",
                f"{result.validation_rmse:.4f}",
                f"{result.test_rmse:.4f}",
                f"{result.seconds:.1f}",
            )

        finished = run(planned, split, seed=seed, noise=noise, on_round=on_round)
    out.print(table)
    summary = finished.to_json()
    if baselines:
        from odp.cli.comparison import comparison_table
        from odp.simulation.baselines import baselines as compute

        privacy = planned.privacy
        with out.status("baselines"):
            found = compute(
                train=split.train,
                history=merge(split.train, split.validation),
                test=split.test,
                epsilon=privacy.epsilon,
                delta=privacy.delta,
                max_items_per_user=privacy.bound(planned.model.items),
                seed=seed,
            )
        out.print(comparison_table(found, finished.test_rmse, finished.epsilon, privacy.delta))
        summary["baselines"] = vars(found)
    if json:
        print_json(summary)
