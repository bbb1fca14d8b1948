"""`odp simulate` on implicit feedback: Recall@20 and NDCG@20 beside DP popularity and iALS without privacy."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from odp.datasets import Ratings
    from odp.simulation.ranking import Ranking
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
    """Runs the task, prints its tables and writes the record into ``output``; returns what ``--json`` prints.

    The split is the one that the data set is published with, or random 80/10/10; with ``held_out``, so many random
    users take no part in training and are tested on a fifth of their items (strong generalisation).
    """
    from rich.table import Table

    from odp.algorithms.implicit.diagnostics import diagnose_ranking
    from odp.algorithms.implicit.evaluation import ranking_baselines, strong_generalisation, training_split
    from odp.datasets import Split, load_split
    from odp.simulation.comparison import spending_table
    from odp.simulation.engine import RoundResult
    from odp.simulation.engine import simulate as run
    from odp.simulation.inputs import SIMULATION, notes, sampling_note
    from odp.simulation.ranking import strong_split
    from odp.simulation.record import run_record, write_record
    from odp.simulation.spending import spending

    strong = None if held_out is None else strong_split(ratings, held_out=held_out, seed=seed)
    split = load_split(data, seed=seed) if strong is None else training_split(strong)
    said = [SIMULATION, *notes(split.train), *sampling_note(task)]
    if not noise:
        said.append("noise is off: this run shows what privacy costs, and protects nobody")
    if strong is not None:
        said.append(f"tested on {held_out:,} users who took no part; Recall@k divides by min(k, held-out items)")
    for line in said:
        out.print(f"note: {line}")
    table = Table("round", "devices", "ε spent", "validation Recall@20", "NDCG@20", "seconds")
    with out.status("simulating") as status:

        def on_round(result: RoundResult) -> None:
            status.update(f"round {result.round} done: validation Recall@20 {result.validation_recall:.4f}")
            table.add_row(
                str(result.round),
                str(result.contributions),
                f"{result.epsilon:.4f}",
                f"{result.validation_recall:.4f}",
                f"{result.validation_ndcg:.4f}",
                f"{result.seconds:.1f}",
            )

        finished = run(task, split, seed=seed, noise=noise, on_round=on_round, checkpoint=checkpoint)
    out.print(table)
    spent = spending(finished.charges, delta=finished.delta) if finished.noisy else ()
    if spent:
        out.print(spending_table(spent))
    summary = finished.to_json() | {"spending": [asdict(entry) for entry in spent], "notes": said}
    budget = f"ε = {finished.epsilon:.4g}, δ = {finished.delta:g}"
    rows: list[tuple[str, Ranking, str]] = []
    beside = None
    if strong is not None:
        found = strong_generalisation(task, strong, finished.model)
        rows.append(("this model (DPAM), unseen users", found, budget))
        summary["strong_ranking"] = found.to_json()
    elif finished.test_ranking is not None:
        rows.append(("this model (DPAM)", finished.test_ranking, budget))
        if baselines:
            with out.status("baselines"):
                beside = ranking_baselines(task, split, seed=seed)
            rows.insert(0, ("DP popularity", beside.dp_popularity, "same ε and δ"))
            rows.append(("iALS, all data in one place", beside.ials_ceiling, "ceiling, not private"))
            summary["baselines"] = beside.to_json()
    if rows:
        out.print(_table(rows))
    if output is not None:
        history, targets = (finished.history, split.test) if strong is None else (strong.history, strong.targets)
        record = run_record(
            kind="simulation",
            task=task,
            split=split if strong is None else Split(split.train, split.validation, strong.targets),
            rounds=[asdict(result) for result in finished.rounds],
            charges=finished.charges,
            ranking=finished.test_ranking if strong is None else rows[0][1],
            seed=seed,
            noise=finished.noisy,
            found=None if beside is None else beside.to_json(),
            diagnostics=diagnose_ranking(task, finished.model, history, targets, item_counts=finished.item_counts),
            totals=finished.totals,
            notes=said,
        )
        out.print(f"run: {write_record(output, record)}; `odp report {output}` makes a page of it")
    return summary


def _table(rows: list[tuple[str, Ranking, str]]) -> Any:
    from rich.table import Table

    cutoffs = list(rows[0][1].recall)
    heads = [f"{name}@{cutoff}" for name in ("Recall", "NDCG") for cutoff in cutoffs]
    table = Table("method", *heads, "privacy", title=f"higher is better; {rows[0][1].users:,} users, whole catalogue")
    for method, found, privacy in rows:
        values = [*found.recall.values(), *found.ndcg.values()]
        table.add_row(method, *(f"{value:.4f}" for value in values), privacy)
    return table
