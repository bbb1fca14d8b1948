"""Draws docs/images/broadcast-cost.png from the JSON of ``python -m benchmarks distributor --json FILE``.

::

    python -m benchmarks.broadcast_figure FILE docs/images/broadcast-cost.png

and prints the table of section 7 of docs/partial-broadcast.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.methods import CPU, DOWN, MANY, METHODS, UP
from odp.errors import ConfigurationError
from odp.pictures import style

#: What is drawn: panel -> figures of ``methods.METHODS`` by the name in front of the method's.
_PANELS: Mapping[str, str] = {
    "bytes to a device": DOWN,
    "bytes from a device": UP,
    "processor time of all servers per device (ms)": CPU,
}


def costs(report: Mapping[str, object]) -> dict[str, dict[str, dict[str, float]]]:
    """Panel -> method -> table -> value, of a benchmark's report.

    Raises:
      ConfigurationError: the report is not one of the distributor's.
    """
    values = _values(report)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for panel, what in _PANELS.items():
        for name, value in values.items():
            table, _, kind = name.partition(": ")
            for method in METHODS:
                if kind == f"{what}, {method}":
                    found.setdefault(panel, {}).setdefault(method, {})[table] = value
    if set(found) != set(_PANELS) or any(set(ways) != set(METHODS) for ways in found.values()):
        raise ConfigurationError("the JSON holds no costs of a distributor; run `python -m benchmarks distributor`")
    return found


def table_of(report: Mapping[str, object]) -> str:
    """The measured costs as a table in Markdown. Raises as ``costs``."""
    found, values = costs(report), _values(report)
    down, up, cpu = (found[panel] for panel in _PANELS)
    lines = ["| table | method | up | down | one device at a time | 12 at once |", "|---|---|---|---|---|---|"]
    for table in down[METHODS[0]]:
        for method in METHODS:
            many = values.get(f"{table}: {CPU}, {method}, {MANY}")
            shown = [_bytes(up[method][table]), _bytes(down[method][table]), f"{cpu[method][table]:.1f} ms"]
            name = table if method == METHODS[0] else ""
            lines.append(f"| {name} | `{method}` | {' | '.join(shown)} | {'' if many is None else f'{many:.1f} ms'} |")
    return "\n".join(lines)


def _values(report: Mapping[str, object]) -> dict[str, float]:
    try:
        return {str(figure["name"]): float(figure["value"]) for figure in report["figures"]}  # type: ignore[attr-defined]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError("Expected the JSON of `python -m benchmarks distributor --json FILE`") from error


def _bytes(count: float) -> str:
    if count < 1e3:
        return f"{count:.0f} B"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def draw(found: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> None:
    """Marks per table and method, on logarithmic axes; the first method, an enclave, in the accent colour.

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    figure, panels = style.figure(1, len(found), width=14.0, height=4.0)
    for panel, (title, ways) in zip(panels, found.items(), strict=True):
        tables = list(next(iter(ways.values())))
        for place, (way, values) in enumerate(ways.items()):
            shown = style.OURS if not place else style.GREYS[(place - 1) % len(style.GREYS)]
            style.line(panel, range(len(tables)), [values[table] for table in tables], shown, text=way)
        panel.set_xticks(range(len(tables)), tables)
        panel.margins(x=0.15)
        panel.set_yscale("log")
        style.head(panel, "", f"{title}, logarithmic")
    style.save(figure, path, title="costs of broadcast methods")


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws what the command line says, and prints the same costs as a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broadcast_figure", description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    given = parser.parse_args(arguments)
    try:
        report = json.loads(given.report.read_text(encoding="utf-8"))
        draw(costs(report), given.picture)
        print(table_of(report))
    except (OSError, ValueError) as error:
        print(f"broadcast_figure: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
