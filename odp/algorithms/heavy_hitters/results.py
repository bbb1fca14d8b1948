"""The words that a search found, with their counts and intervals for the noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.table import Table

from odp.algorithms.estimates import CONFIDENCE, Estimate, deviations

_MOST_ROWS = 40


@dataclass(frozen=True)
class WordResults(Mapping[str, Estimate]):
    """Words by their noisy counts, the largest first: how many users contributed each.

    Attributes:
      counts: by word.
      std: standard deviation of the noise on each count. An interval covers the noise alone. A word was found because
        its noisy count was large, so counts near the threshold are more often too large than too small.
      contributions: devices that took part in the last round.
      epsilon, delta: what all rounds cost each of them; epsilon is infinite without noise.
    """

    counts: Mapping[str, float] = field(repr=False)
    std: Mapping[str, float] | float
    contributions: int
    epsilon: float
    delta: float

    def __getitem__(self, word: str) -> Estimate:
        return self.estimate(word)

    def __iter__(self) -> Iterator[str]:
        return iter(self.counts)

    def __len__(self) -> int:
        return len(self.counts)

    def estimate(self, word: str, confidence: float = CONFIDENCE) -> Estimate:
        """The count of a word that was found, with its interval. Raises KeyError, ConfigurationError."""
        count = self.counts[word]
        std = self.std if isinstance(self.std, float) else self.std[word]
        reach = deviations(confidence) * std
        return Estimate(count, count - reach, count + reach)

    def top(self, count: int) -> list[str]:
        """The words of the largest counts."""
        return list(self.counts)[:count]

    def to_json(self, confidence: float = CONFIDENCE) -> dict[str, object]:
        """Plain values."""
        estimates = {word: self.estimate(word, confidence) for word in self.counts}
        return {
            "contributions": self.contributions,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "confidence": confidence,
            "words": [
                {"word": word, "count": estimate.value, "low": estimate.low, "high": estimate.high}
                for word, estimate in estimates.items()
            ],
        }

    def lines(self, confidence: float, exact: WordResults | None = None) -> Iterator[object]:
        """What a terminal shows."""
        table = Table("word", "count", "from", "to", *([] if exact is None else ["without noise"]))
        for word in self.top(_MOST_ROWS):
            estimate = self.estimate(word, confidence)
            row = [word, f"{estimate.value:.0f}", f"{estimate.low:.0f}", f"{estimate.high:.0f}"]
            table.add_row(*row, *([] if exact is None else [f"{exact.counts.get(word, 0.0):.0f}"]))
        yield table
        if len(self) > _MOST_ROWS:
            yield f"the {_MOST_ROWS} largest of {len(self)} words"

    def draw(self, path: str | Path, *, exact: WordResults | None = None, confidence: float = CONFIDENCE) -> None:
        """Saves a picture: the words of the largest counts with their intervals, and ``exact`` beside them.

        Raises:
          DataError: the file cannot be written, or its ending names no format of pictures.
        """
        from odp.pictures import style

        words = self.top(_MOST_ROWS)
        estimates = [self.estimate(word, confidence) for word in words]
        figure, (panel,) = style.figure(width=7.0, height=1.5 + 0.26 * len(words))
        places, values = np.arange(len(words)), [estimate.value for estimate in estimates]
        panel.barh(places, values, 0.7, color=style.LIGHT.soft)
        low, high = [estimate.low for estimate in estimates], [estimate.high for estimate in estimates]
        style.whiskers(panel, values, places, low, high, along="x")
        if exact is not None:
            style.exact_mark(panel, [exact.counts.get(word, 0.0) for word in words], places)
        panel.set_yticks(places, words)
        panel.invert_yaxis()
        panel.grid(visible=False, axis="y")
        panel.grid(visible=True, axis="x")
        panel.set_xlabel("users")
        style.head(panel, f"The {len(words)} most frequent words" if words else "No word was found")
        style.note(figure, style.marks(confidence, exact=exact is not None))
        style.save(figure, path, title="words by their counts")
