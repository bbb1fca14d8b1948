"""The answers to a question on a terminal, and `odp simulate` of a question."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from odp.cli.console import print_json, results_console, rows_of
from odp.cli.data_options import print_reading
from odp.cli.outputs import writing

if TYPE_CHECKING:
    from odp.algorithms.capabilities import Answers
    from odp.algorithms.choices import Question
    from odp.datasets import Ratings

_CONFIDENCE = 0.95


def show_results(
    answers: Answers,
    *,
    picture: Path | None,
    confidence: float,
    json: bool,
    exact: Answers | None = None,
    printed: dict[str, Any] | None = None,
    usable: str = "",
) -> None:
    """The answers on stdout; with ``json``, one object there, and the answers on stderr.

    ``usable`` says of a training how many devices have usable rows.
    """
    out = results_console(machine=json)
    plain = answers.to_json(confidence)
    for line in answers.lines(confidence, exact):
        out.print(line)
    out.print(
        f"{answers.contributions:,} devices; ε {answers.epsilon:.4g} at δ {answers.delta:g} for all of it; "
        f"intervals cover the noise with {confidence:.0%} each"
    )
    if usable:
        out.print(usable)
        plain["usable_examples"] = usable
    if picture is not None:
        with writing(picture):
            answers.draw(picture, exact=exact, confidence=confidence)
        out.print(f"picture: {picture}")
    if json:
        # The rows of CSV are the answers, also where JSON has more lists, such as the charges.
        print_json(plain if printed is None else printed, rows=rows_of(plain))


def simulate_task(task: Question, ratings: Ratings, *, seed: int, noise: bool, output: Path | None, json: bool) -> None:
    """Simulates ``task`` on a data set, beside the exact answers."""
    from odp.algorithms.registry import training_of
    from odp.research.simulation.answers import simulate_answers
    from odp.research.simulation.inputs import SIMULATION

    finished = simulate_answers(task, ratings, seed=seed, noise=noise)
    picture = None
    if output is not None:
        picture = output / f"{training_of(task.definition())}.png"
        with writing(output):
            output.mkdir(parents=True, exist_ok=True)
    print_reading([SIMULATION, *finished.notes])
    show_results(
        finished.results, picture=picture, confidence=_CONFIDENCE, json=json, exact=finished.exact,
        printed=finished.to_json(),
    )  # fmt: skip
