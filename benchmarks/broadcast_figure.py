"""Draws docs/images/broadcast-cost.png from the JSON of ``python -m benchmarks distributor --json FILE``.

::

    python -m benchmarks.broadcast_figure FILE docs/images/broadcast-cost.png
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from odp.errors import ConfigurationError

_BYTES, _DOWN = "bytes to a device", "bytes down per device, enclave"
#: What is drawn: panel -> (way, how its figure is named behind the table).
_PANELS: Mapping[str, Sequence[tuple[str, str]]] = {
    _BYTES: (("enclave", _DOWN),),
    "processor time per device (ms)": (
        ("enclave, one at a time", "CPU per device, enclave, one at a time"),
        ("enclave, 12 at once", "CPU per device, enclave, 12 at once"),
        ("all", "CPU per device, the whole table"),
    ),
}


def costs(report: Mapping[str, object]) -> dict[str, dict[str, dict[str, float]]]:
    """Panel -> way -> table -> value, of a benchmark's report.

    Raises:
      ConfigurationError: the report is not one of the distributor's.
    """
    found: dict[str, dict[str, dict[str, float]]] = {panel: {} for panel in _PANELS}
    try:
        for figure in report["figures"]:  # type: ignore[attr-defined]
            table, _, name = str(figure["name"]).partition(": ")
            for panel, ways in _PANELS.items():
                for way, wanted in ways:
                    if name == wanted:
                        found[panel].setdefault(way, {})[table] = float(figure["value"])
            if name == _DOWN:
                # What the benchmark compares with is the way of the whole table.
                found[_BYTES].setdefault("all", {})[table] = float(figure["limit"]["value"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError("Expected the JSON of `python -m benchmarks distributor --json FILE`") from error
    if not all(found.values()):
        raise ConfigurationError("the JSON holds no costs of a distributor; run `python -m benchmarks distributor`")
    return found


def draw(found: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> None:
    """Bars per table and way, on logarithmic axes."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(9.6, 3.4), layout="constrained")
    for axis, (panel, ways) in zip(axes, found.items(), strict=True):
        tables = list(next(iter(ways.values())))
        wide = 0.8 / len(ways)
        for place, (way, values) in enumerate(ways.items()):
            lefts = [number + (place - (len(ways) - 1) / 2) * wide for number in range(len(tables))]
            axis.bar(lefts, [values[table] for table in tables], wide, label=way)
        axis.set_xticks(range(len(tables)), tables, fontsize=8)
        axis.set_yscale("log")
        axis.set_title(panel, fontsize=9)
        axis.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broadcast_figure", description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    given = parser.parse_args(arguments)
    try:
        draw(costs(json.loads(given.report.read_text(encoding="utf-8"))), given.picture)
    except (OSError, ValueError) as error:
        print(f"broadcast_figure: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
