"""Table and figure of ``odp.reproductions.shakespeare``: what was published beside what was found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from odp.reproductions.shakespeare import PUBLISHED, Result

if TYPE_CHECKING:
    from rich.table import Table


def table_of(result: Result) -> Table:
    """Rows of (what, published, here), for a terminal."""
    from rich.table import Table

    table = Table("", "published", "here", title=f"next characters, {result.clients:,} speakers, seed {result.seed}")
    for row in rows(result):
        table.add_row(*row)
    return table


def rows(result: Result) -> list[tuple[str, str, str]]:
    """(what, published, here); empty where it was not published."""
    rounds = len(result.accuracies)
    found = [
        ("privacy of a whole speaker", "none", f"ε = {result.epsilon:.4f}, δ = {result.delta:g}"),
        ("test accuracy", f"about {PUBLISHED.accuracy:.2f}", f"{result.accuracy:.4f}"),
        ("test accuracy of the most frequent character", "", f"{result.most_frequent:.4f}"),
        ("speakers", f"{PUBLISHED.clients:,}, of all plays", f"{result.clients:,}"),
        ("rounds", f"{PUBLISHED.rounds:,}", f"{rounds:,}"),
        (
            "speakers of a round",
            f"{PUBLISHED.clients_per_round}, drawn",
            f"all {result.communications // rounds:,}",
        ),
        (
            "communications (updates)",
            f"{PUBLISHED.rounds * PUBLISHED.clients_per_round:,}",
            f"{result.communications:,}",
        ),
        ("characters that the model reads", f"{PUBLISHED.context}", f"{result.context}"),
        ("model", "recurrent network", f"multinomial, {result.parameters:,} parameters"),
        ("noise of the stream over its sensitivity", "none", f"{result.noise_multiplier:.4f}"),
        ("characters to learn from and to test on", "", f"{result.training_examples:,}, {result.test_examples:,}"),
        ("bytes up and down, of a speaker in a round", "", f"{result.upload_bytes:,}, {result.download_bytes:,}"),
    ]
    if result.without_noise is not None:
        found.append(("test accuracy of the same training without noise", "", f"{result.without_noise:.4f}"))
    return found


def draw(path: Path, result: Result) -> None:
    """Writes the picture: accuracy by round, beside the published one."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    numbers = range(1, len(result.accuracies) + 1)
    axes.plot(numbers, result.accuracies, label=f"here, ε = {result.epsilon:.1f}, reads {result.context} characters")
    axes.axhline(
        PUBLISHED.accuracy, linestyle="--", color="C1",
        label=f"published, no privacy, {PUBLISHED.rounds:,} rounds, reads {PUBLISHED.context} characters",
    )  # fmt: skip
    if result.without_noise is not None:
        axes.axhline(result.without_noise, linestyle=":", color="C0", label="here without noise, last round")
    axes.axhline(result.most_frequent, linestyle=":", color="k", label="most frequent character")
    axes.set(xlabel="round", ylabel="test accuracy", ylim=(0.0, 0.65), title=f"{result.clients:,} speakers")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)
