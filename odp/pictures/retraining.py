"""Error and ε over the trainings of a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from odp.pictures import style

_SMOOTHED = 4


def draw(
    path: str | Path,
    errors: Mapping[str, Sequence[float]],
    *,
    epsilon: Sequence[float],
    budget: float,
    reference: Sequence[float],
    title: str,
) -> None:
    """Draws test RMSE of each way to retrain above, as the mean of four trainings, and ε of the first below.

    Args:
      path: of the picture.
      errors: test RMSE by training, by the name of the way; the first is ours.
      epsilon: spent after each training, per user; infinite without noise, and then not drawn.
      budget: of the lifetime.
      reference: test RMSE of each user's own mean.
      title: of the file.

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    spends = bool(np.isfinite(epsilon).all())
    figure, panels = style.figure(
        1 + spends, width=8.6, height=5.4 if spends else 3.6, sharex=True, height_ratios=(5, 2) if spends else (1,)
    )
    above = panels[0]
    looks = (style.OURS, *style.GREYS)
    for (name, values), shown in zip({**errors, "each user's own mean": reference}.items(), looks, strict=False):
        places, means = _smooth(values)
        style.line(above, places, means, replace(shown, name=name), text=f"{name}  {means[-1]:.3f}")
    style.head(above, "", f"test RMSE, mean of {_SMOOTHED} trainings, lower is better")
    if spends:
        below = panels[1]
        below.fill_between(range(len(epsilon)), list(epsilon), color=style.LIGHT.soft, alpha=0.35, linewidth=0)
        style.line(below, list(range(len(epsilon))), list(epsilon), style.OURS, text=f"ε spent  {epsilon[-1]:.3g}")
        style.level(below, budget, style.GREYS[1], text=f"budget  {budget:g}")
        below.set_ylim(0.0, 1.15 * max(budget, *epsilon))
        style.head(below, "", "ε of all trainings so far, per user")
    panels[-1].set_xlabel("training")
    style.whole_numbers(panels[-1])
    style.save(figure, path, title=title)


def _smooth(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Means of the last ``_SMOOTHED`` values, of fewer at the beginning; and where they stand."""
    array = np.asarray(values, dtype=np.float64)
    means = [float(np.nanmean(array[max(0, end - _SMOOTHED) : end])) for end in range(1, len(array) + 1)]
    return list(range(len(array))), means
