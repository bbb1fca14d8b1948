"""An evaluation on a terminal: a table of metrics, one of calibration, and one of differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.table import Table

from odp.algorithms.estimates import Estimate
from odp.algorithms.model_evaluation.curves import Measured


def lines_of_models(
    models: Mapping[str, Measured], exact: Mapping[str, Measured], tested: str
) -> Iterator[Table | str]:
    """What rich prints of each model; ``exact`` are a simulation's without noise, or none.

    ``tested`` says how many examples the metrics are about.
    """
    for name, model in models.items():
        truth = exact.get(name)
        table = Table("metric", "value", "from", "to", *([] if truth is None else ["without noise"]))
        table.title = f"{name}: {model.users.value:,.0f} users with examples; {tested}"
        for metric, estimate in model.metrics.items():
            table.add_row(metric, *_cells(estimate), *([] if truth is None else [f"{truth.metrics[metric].value:.4g}"]))
        yield table
        if model.calibration is not None:
            groups = Table("predicted", "share of examples", "observed", "from", "to", title=f"{name}: calibration")
            for group in model.calibration.groups:
                groups.add_row(f"{group.predicted:.3f}", f"{group.share:.1%}", *_cells(group.observed))
            yield groups


def lines_of_differences(
    names: tuple[str, str], differences: Mapping[str, Estimate], exact: Mapping[str, Estimate]
) -> Iterator[Table | str]:
    """What rich prints of the second model minus the first."""
    table = Table("metric", "difference", "from", "to", *(["without noise"] if exact else []))
    table.title = f"{names[1]} minus {names[0]}"
    for metric, estimate in differences.items():
        table.add_row(metric, *_cells(estimate), *([f"{exact[metric].value:.4g}"] if exact else []))
    yield table
    yield "intervals of differences cover the noise and which users took part"


def _cells(estimate: Estimate) -> tuple[str, str, str]:
    return f"{estimate.value:.4g}", f"{estimate.low:.4g}", f"{estimate.high:.4g}"
