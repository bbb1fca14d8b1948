"""Table and figure of ``odp.research.reproductions.local``: published claims beside measurements, and whether they
hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from odp.pictures import style
from odp.privacy.mechanisms.categorical import UnaryEncoding
from odp.privacy.mechanisms.randomized_response import RandomizedResponse
from odp.research.reproductions.local import AGREES, EPSILONS, PEOPLE, Frequency, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

_SHOWN = (10, 2.0)  # choices and epsilon of the first picture


@dataclass(frozen=True)
class Row:
    """A claim, what was published for it, what is found here, and whether the published claim holds."""

    claim: str
    published: str
    here: str
    holds: bool

    @property
    def verdict(self) -> str:
        """In words."""
        return "holds" if self.holds else "does not hold"


def table_of(result: Result) -> Table:
    """The rows, for a terminal."""
    from rich.table import Table

    table = Table("claim", "published", "ours", "", title=f"Local privacy, seed {result.seed}")
    for row in rows(result):
        table.add_row(row.claim, row.published, row.here, row.verdict)
    return table


def rows(result: Result) -> list[Row]:
    """All claims."""
    return [*_histogram_rows(result), *_unary_rows(result), *_scalar_rows(result), *_mean_rows(result)]


def _histogram_rows(result: Result) -> list[Row]:
    listed = []
    for choices, epsilon, frequency in ((2, 1.0, 0.3), (10, 2.0, 0.0), (10, 2.0, 0.3), (100, 4.0, 0.3)):
        frequency_row = next(
            row
            for row in result.frequencies
            if (row.mechanism, row.choices, row.epsilon, row.frequency) == ("k-RR", choices, epsilon, frequency)
        )
        listed.append(
            Row(
                f"k-RR, K={choices}, ε={epsilon:g}, h={frequency:g}: n·MSE is (K-2+e^ε)/(e^ε-1)²",
                f"{frequency_row.printed:.4g}",
                f"{frequency_row.measured:.4g} ± {frequency_row.error_std:.2g}; exact {frequency_row.exact:.4g}",
                frequency_row.printed_agrees,
            )
        )
    exact = [row for row in result.frequencies if row.mechanism == "k-RR"]
    listed.append(_all_agree("k-RR, all frequencies: plus h(K-2)/(e^ε-1) (our exact formula)", exact))
    return listed


def _unary_rows(result: Result) -> list[Row]:
    unary = [row for row in result.frequencies if row.mechanism == "unary"]
    empty = [row for row in unary if row.frequency == 0.0]
    listed = [
        Row(
            f"optimized unary encoding, K={row.choices}, ε={row.epsilon:g}, h=0: n·MSE is 4e^ε/(e^ε-1)²",
            f"{row.printed:.4g}",
            f"{row.measured:.4g} ± {row.error_std:.2g}",
            row.printed_agrees,
        )
        for row in empty
    ]
    listed.append(_all_agree("optimized unary encoding, all frequencies: plus h (our exact formula)", unary))
    turning_points = {epsilon: turning_point(epsilon) for epsilon in (1.0, 2.0, 4.0)}
    stated = {epsilon: 3 * np.exp(epsilon) + 2 for epsilon in turning_points}
    listed.append(
        Row(
            "unary encoding beats k-RR on an empty category for K above 3e^ε+2, ε=1, 2, 4",
            ", ".join(f"{value:.1f}" for value in stated.values()),
            "from K = " + ", ".join(str(value) for value in turning_points.values()),
            all(stated[epsilon] < turning_points[epsilon] <= stated[epsilon] + 1 for epsilon in turning_points),
        )
    )
    return listed


def turning_point(epsilon: float) -> int:
    """The fewest categories from which unary encoding has the smaller error on an empty one, by the exact formulas."""
    few, many = 2, 2**12
    while few < many:
        middle = (few + many) // 2
        none = np.zeros(middle)
        unary = UnaryEncoding(choices=middle, asked=epsilon).variance(none, 1)[0]
        better = unary < RandomizedResponse(choices=middle, asked=epsilon).variance(none, 1)[0]
        few, many = (few, middle) if better else (middle + 1, many)
    return few


def _scalar_rows(result: Result) -> list[Row]:
    listed = [
        Row(
            f"ScalarDP, ε={row.epsilon:g}, k={row.levels}: variance at most that of lemma 4.3",
            "a bound",
            f"at most {row.bound:.4f} of it; largest {row.measured:.5g} ± {row.error_std:.1g}, exact {row.exact:.5g}",
            row.agrees and row.bound <= 1.0,
        )
        for row in result.scalars
    ]
    listed.append(
        Row(
            "Laplace, ε=1, 2, 4, 8, 10: variance 2/ε²",
            ", ".join(f"{2 / row.epsilon**2:.4g}" for row in result.scalars),
            ", ".join(f"{row.laplace_measured:.4g}" for row in result.scalars),
            all(row.agrees for row in result.scalars),
        )
    )
    listed.append(
        Row(
            "k = e^(ε/3) rounded up is of the best order",
            "a constant factor",
            "times the best: " + ", ".join(f"{row.exact / row.best:.3f}" for row in result.scalars),
            all(row.exact <= 1.1 * row.best for row in result.scalars),
        )
    )
    gains = [row.laplace / row.best for row in result.scalars]
    listed.append(
        Row(
            "ScalarDP has a smaller variance than Laplace noise at ε=1, 2, 4, 8, 10",
            "smaller",
            "by " + ", ".join(f"{gain:.1f}" for gain in gains),
            all(gain > 1 for gain in gains),
        )
    )
    return listed


def _mean_rows(result: Result) -> list[Row]:
    last = result.means[-1]
    # Standard errors of the logarithm of an error over independent repeats, and of a slope through them.
    deviation = math.sqrt(2 / result.repeats)
    slope_deviation = deviation / math.sqrt(len(PEOPLE) * np.var(np.log(PEOPLE)))
    listed = [
        Row(
            f"mean of n numbers, {words}: MSE falls as n^{power}",
            f"{power}",
            f"{result.slope(name):.3f}; {getattr(last, name):.3g} at n = {last.people:,}",
            abs(result.slope(name) - power) < AGREES * slope_deviation,
        )
        for words, name, power in (
            ("local Laplace", "local_laplace", -1),
            ("ScalarDP", "local_scalar", -1),
            ("central Laplace", "central_laplace", -2),
        )
    ]
    cost = [row.local_laplace / row.central_laplace for row in result.means]
    listed.append(
        Row(
            "cost of local against central: n times the error",
            ", ".join(f"{row.people:,}" for row in result.means),
            ", ".join(f"{value:,.0f}" for value in cost),
            all(
                abs(math.log(value / row.people)) < AGREES * math.sqrt(2) * deviation
                for value, row in zip(cost, result.means, strict=True)
            ),
        )
    )
    return listed


def _all_agree(claim: str, measured: list[Frequency]) -> Row:
    worst = max(measured, key=lambda row: abs(row.measured - row.exact) / row.error_std)
    distance = abs(worst.measured - worst.exact) / worst.error_std
    return Row(
        claim,
        "not published",
        f"{len(measured)} errors within {distance:.1f} standard errors",
        all(row.agrees for row in measured),
    )


def draw(path: Path, result: Result) -> None:
    """Writes the picture: k-RR by frequency, by number of categories, ScalarDP beside Laplace, local beside central."""
    figure, (left, right, below, last) = style.figure(2, 2, width=13.5, height=8.6)
    _draw_frequencies(left, result)
    _draw_choices(right)
    _draw_scalars(below, result)
    _draw_means(last, result)
    style.save(figure, path, title="errors of local mechanisms beside their published formulas")


def _draw_frequencies(axes: Axes, result: Result) -> None:
    choices, epsilon = _SHOWN
    shown = [
        row for row in result.frequencies if (row.mechanism, row.choices, row.epsilon) == ("k-RR", choices, epsilon)
    ]
    frequencies = [row.frequency for row in shown]
    measured = [row.measured for row in shown]
    reach = [2 * row.error_std for row in shown]
    style.whiskers(axes, frequencies, measured, np.subtract(measured, reach), np.add(measured, reach))
    axes.plot(frequencies, measured, "o", color=style.LIGHT.accent, markersize=6, zorder=4)
    style.label(axes, measured[-1], "measured,\n± 2 standard errors", colour=style.LIGHT.accent, bold=True)
    style.line(axes, frequencies, [row.exact for row in shown], style.GREYS[0], text="exact")
    style.line(axes, frequencies, [row.printed for row in shown], style.GREYS[1], text="as published")
    axes.set_xlabel("frequency h of the category")
    style.head(axes, f"k-RR, K = {choices}, ε = {epsilon:g}", "n · MSE")


def _draw_choices(axes: Axes) -> None:
    sizes = np.unique(np.rint(np.geomspace(2, 1000, 60)).astype(int)).tolist()
    for epsilon in (1.0, 2.0, 4.0):
        response = [RandomizedResponse(choices=k, asked=epsilon).variance(np.zeros(k), 1)[0] for k in sizes]
        unary = [UnaryEncoding(choices=k, asked=epsilon).variance(np.zeros(k), 1)[0] for k in sizes]
        style.line(axes, sizes, response, style.OURS, text=f"k-RR, ε = {epsilon:g}")
        style.line(axes, sizes, unary, style.GREYS[1], text=f"unary encoding, ε = {epsilon:g}")
    axes.set(xscale="log", yscale="log", xlabel="categories K")
    style.head(axes, "Which mechanism for how many categories", "n · MSE of an empty category")


def _draw_scalars(axes: Axes, result: Result) -> None:
    for shown, exact, measured, name in (
        (style.GREYS[1], [row.laplace for row in result.scalars], [row.laplace_measured for row in result.scalars],
         "Laplace"),
        (style.OURS, [row.exact for row in result.scalars], [row.measured for row in result.scalars], "ScalarDP"),
    ):  # fmt: skip
        axes.plot(EPSILONS, exact, color=shown.colour, linestyle=shown.dashes, linewidth=shown.width)
        axes.plot(EPSILONS, measured, shown.marker, color=shown.colour, markersize=6, zorder=4)
        style.label(axes, exact[-1], name, colour=shown.colour, bold=shown.ours)
    axes.set(yscale="log", xlabel="ε")
    style.head(axes, "A number of one person", "largest variance on [0, 1]; lines: exact, marks: measured")


def _draw_means(axes: Axes, result: Result) -> None:
    people = [row.people for row in result.means]
    for shown, name, text in (
        (style.GREYS[1], "local_laplace", "local, Laplace"),
        (style.OURS, "local_scalar", "local, ScalarDP"),
        (style.GREYS[0], "central_laplace", "central, Laplace"),
    ):
        style.line(axes, people, [getattr(row, name) for row in result.means], shown, text=text)
    axes.set(xscale="log", yscale="log", xlabel="people n")
    style.head(axes, "Mean of numbers within [0, 1] at ε = 1", "MSE of the mean")
