"""Released statistics on a terminal, and `odp simulate` of a statistics task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from odp.cli.console import console, print_json
from odp.cli.outputs import writing, writing_file

if TYPE_CHECKING:
    from odp.algorithms.statistics.estimates import HistogramResult
    from odp.algorithms.statistics.results import Results
    from odp.datasets import Ratings
    from odp.models.statistics import Statistics

_MOST_ROWS = 40


def show_results(
    found: Results, *, picture: Path | None, confidence: float, json: bool, exact: Results | None = None
) -> None:
    """One table per histogram and one line per mean on stderr; with ``json``, one object on stdout."""
    from odp.algorithms.statistics.estimates import HistogramResult

    out = console()
    plain = found.to_json(confidence)
    for name, result in found.items():
        known = None if exact is None else exact[name]
        if isinstance(result, HistogramResult):
            _histogram(name, result, known if isinstance(known, HistogramResult) else None, confidence)
            continue
        low, high = result.interval(confidence)
        truth = "" if known is None or isinstance(known, HistogramResult) else f" (without noise {known.value:.4g})"
        out.print(f"[bold]{name}[/bold]: mean {result.value:.4g}, from {low:.4g} to {high:.4g}{truth}")
    out.print(
        f"{found.contributions:,} devices; ε {found.epsilon:.4g} at δ {found.delta:g} for all of it; "
        f"intervals cover the noise with {confidence:.0%} each"
    )
    if picture is not None:
        with writing_file(picture):
            found.draw(picture, exact=exact, confidence=confidence)
        out.print(f"picture: {picture}")
    if json:
        print_json(plain)


def simulate_task(
    task: Statistics, ratings: Ratings, *, seed: int, noise: bool, output: Path | None, json: bool
) -> None:
    """Simulates ``task`` on a data set, beside what was there without noise."""
    from odp.algorithms.statistics.estimates import CONFIDENCE
    from odp.simulation.inputs import SIMULATION
    from odp.simulation.statistics import simulate_statistics

    finished = simulate_statistics(task, ratings, seed=seed, noise=noise)
    picture = None
    if output is not None:
        picture = output / "statistics.png"
        with writing(output):
            output.mkdir(parents=True, exist_ok=True)
    console().print(f"note: {SIMULATION}")
    show_results(finished.statistics, picture=picture, confidence=CONFIDENCE, json=False, exact=finished.exact)
    if json:
        print_json(finished.to_json())


def _histogram(name: str, result: HistogramResult, known: HistogramResult | None, confidence: float) -> None:
    import numpy as np
    from rich.table import Table

    low, high = result.interval(confidence)
    shown = np.arange(len(result.counts))
    title = f"{name}: {result.counting} per bin"
    if len(shown) > _MOST_ROWS:
        shown = np.argsort(-result.counts, kind="stable")[:_MOST_ROWS]
        title += f", the {_MOST_ROWS} largest of {len(result.counts):,}"
    table = Table("bin", "count", "from", "to", *([] if known is None else ["without noise"]), title=title)
    for bin in shown.tolist():
        label = str(bin) if result.edges is None else f"{result.edges[bin]:g} .. {result.edges[bin + 1]:g}"
        row = [label, f"{result.counts[bin]:.1f}", f"{low[bin]:.1f}", f"{high[bin]:.1f}"]
        table.add_row(*row, *([] if known is None else [f"{known.counts[bin]:.1f}"]))
    console().print(table)
