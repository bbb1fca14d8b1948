"""Table and figure of ``odp.research.reproductions.shakespeare``: what was published beside what was found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from odp.pictures import style
from odp.research.reproductions.shakespeare import PUBLISHED, Result

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
    listed = [
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
        listed.append(("test accuracy of the same training without noise", "", f"{result.without_noise:.4f}"))
    return listed


def draw(path: Path, result: Result) -> None:
    """Writes the picture: accuracy by round, beside the published one."""
    figure, (axes,) = style.figure(width=9.0, height=4.4)
    numbers = range(1, len(result.accuracies) + 1)
    style.line(
        axes, numbers, result.accuracies, style.OURS,
        text=f"here, ε = {result.epsilon:.1f}\nreads {result.context} characters",
    )  # fmt: skip
    style.level(
        axes, PUBLISHED.accuracy, style.GREYS[0],
        text=f"published, no privacy\n{PUBLISHED.rounds:,} rounds, reads {PUBLISHED.context} characters",
    )  # fmt: skip
    if result.without_noise is not None:
        style.level(axes, result.without_noise, style.GREYS[1], text="here without noise, last round")
    style.level(axes, result.most_frequent, style.GREYS[3], text="most frequent character")
    axes.set_xlabel("round")
    style.head(axes, f"{result.clients:,} speakers", "test accuracy")
    style.whole_numbers(axes)
    style.save(figure, path, title="accuracy of the next character by round")
