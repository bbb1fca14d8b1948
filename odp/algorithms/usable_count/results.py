"""How many devices have usable rows, as shares of the devices that took part, with intervals for the noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path

from odp.algorithms.estimates import CONFIDENCE, Estimate, deviations
from odp.algorithms.usable_count.terms import ALL, KEYS, NO_ROWS, NONE, SIZE, SOME, WORDS
from odp.errors import ConfigurationError
from odp.numerics.arrays import Float64Array


@dataclass(frozen=True)
class UsableDevices:
    """Shares of the devices that voted, each from 0 to 1.

    A device that could not compute its vote in time counts in no place, so shares may sum to less than 1.

    Attributes:
      counts: float64 [4], what was released: devices by place; noise can make one negative.
      std: standard deviation of the noise on each.
      contributions: devices that took part.
      epsilon, delta: what the release cost each of them; epsilon is infinite where there was no noise.
    """

    counts: Float64Array = field(repr=False)
    std: float
    contributions: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if self.counts.shape != (SIZE,) or self.contributions < 1:
            raise ConfigurationError(
                f"Expected {SIZE} released numbers of at least one device (got {list(self.counts.shape)} of "
                f"{self.contributions})"
            )

    def share(self, *places: int, confidence: float = CONFIDENCE) -> Estimate:
        """The share of devices in some of the places, with its interval."""
        value = sum(float(self.counts[place]) for place in places) / self.contributions
        reach = deviations(confidence) * self.std * math.sqrt(len(places)) / self.contributions
        return Estimate(*(min(1.0, max(0.0, share)) for share in (value, value - reach, value + reach)))

    @property
    def no_rows(self) -> Estimate:
        """Of devices without a row that the task reads."""
        return self.share(NO_ROWS)

    @property
    def none_usable(self) -> Estimate:
        """Of devices with rows, of which none is usable."""
        return self.share(NONE)

    @property
    def some_usable(self) -> Estimate:
        """Of devices with usable rows and others."""
        return self.share(SOME)

    @property
    def all_usable(self) -> Estimate:
        """Of devices whose rows are all usable."""
        return self.share(ALL)

    @property
    def usable(self) -> Estimate:
        """Of devices with a usable row: they can train."""
        return self.share(SOME, ALL)

    def summary(self, confidence: float = CONFIDENCE) -> str:
        """One line, to stand beside the figures of the training."""
        usable = self.share(SOME, ALL, confidence=confidence)
        parts = ", ".join(
            f"{_percent(self.share(place, confidence=confidence).value)} {words}" for place, words in enumerate(WORDS)
        )
        error = _percent(deviations(confidence) * self.std / self.contributions)
        return (
            f"of {self.contributions:,} devices, {_range(usable)} have usable rows: "
            f"{parts} (each ± {error}; ε {self.epsilon:.3g})"
        )

    def to_json(self, confidence: float = CONFIDENCE) -> dict[str, object]:
        """Plain values."""
        shares = {key: self.share(place, confidence=confidence) for place, key in enumerate(KEYS)}
        shares["usable"] = self.share(SOME, ALL, confidence=confidence)
        return {
            "contributions": self.contributions,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "confidence": confidence,
            "shares": {name: asdict(share) for name, share in shares.items()},
            "std": self.std / self.contributions,
        }

    def lines(self, confidence: float, exact: UsableDevices | None = None) -> Iterator[object]:
        """What a terminal shows."""
        for place, words in enumerate(WORDS):
            share = self.share(place, confidence=confidence)
            truth = "" if exact is None else f" (without noise {_percent(exact.share(place).value)})"
            yield f"{_percent(share.value)} of devices {words}, from {_range(share)}{truth}"
        usable = self.share(SOME, ALL, confidence=confidence)
        words = "of devices have usable rows: they can train"
        yield f"{_percent(usable.value)} {words}, from {_range(usable)}"

    def draw(self, path: str | Path, *, exact: UsableDevices | None = None, confidence: float = CONFIDENCE) -> None:
        """Saves a picture: the share of each place with its interval, and ``exact`` beside it.

        Raises:
          DataError: the file cannot be written, or its ending names no format of pictures.
        """
        from odp.pictures import style

        shares = [self.share(place, confidence=confidence) for place in range(SIZE)]
        values, lows, highs = ([100 * bound for bound in bounds] for bounds in zip(*map(astuple, shares), strict=True))
        figure, (panel,) = style.figure(height=3.2)
        style.whiskers(panel, values, range(SIZE), lows, highs, along="x")
        panel.plot(values, range(SIZE), "o", color=style.LIGHT.accent, markersize=7)
        if exact is not None:
            style.exact_mark(panel, [100 * exact.share(place).value for place in range(SIZE)], range(SIZE))
        panel.set_yticks(range(SIZE), WORDS)
        panel.margins(y=0.2)
        panel.grid(visible=True, axis="x")
        panel.set_xlim(0, 100)
        panel.set_xlabel("% of devices")
        style.note(figure, style.marks(confidence, exact=exact is not None))
        style.save(figure, path, title="usable rows")


def _percent(share: float) -> str:
    """Such as "97 %"; shares below a tenth have a decimal place."""
    return f"{100 * share:.{0 if share >= 0.1 else 1}f} %"


def _range(share: Estimate) -> str:
    return f"{_percent(share.low)} to {_percent(share.high)}"
