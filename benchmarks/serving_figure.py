"""Draws docs/images/serving.png from the JSON of ``python -m benchmarks serving --json FILE``.

::

    python -m benchmarks.serving_figure FILE docs/images/serving.png
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from odp.errors import ConfigurationError
from odp.pictures import style

#: Panel -> line -> (figure behind the catalogue's name, whether its limit is drawn).
_PANELS: Mapping[str, Mapping[str, tuple[str, bool]]] = {
    "processor time of one recommendation (ms)": {
        "all of it": ("best 20, p50", True),
        "the scan": ("scan alone, p50", True),
    },
    "memory (MB)": {
        "index, at its peak": ("memory, at its peak", False),
        "rows as float32": ("memory, at its peak", True),
    },
}
_NAME = re.compile(r"([\d,]+) items: (.*)")


def lines(report: Mapping[str, object]) -> dict[str, dict[str, dict[int, float]]]:
    """Panel -> line -> items -> value.

    Raises:
      ConfigurationError: the report is not one of serving.
    """
    found: dict[str, dict[str, dict[int, float]]] = {}
    try:
        for figure in report["figures"]:  # type: ignore[attr-defined]
            match = _NAME.fullmatch(figure["name"])
            for panel, wanted in _PANELS.items():
                for line, (name, limit) in wanted.items():
                    if match is not None and match[2] == name:
                        value = float(figure["limit"]["value"] if limit else figure["value"])
                        found.setdefault(panel, {}).setdefault(line, {})[int(match[1].replace(",", ""))] = value
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError("Expected the JSON of `python -m benchmarks serving --json FILE`") from error
    if set(found) != set(_PANELS):
        raise ConfigurationError("the JSON holds no figures of serving; run `python -m benchmarks serving`")
    return found


def draw(found: Mapping[str, Mapping[str, Mapping[int, float]]], path: Path) -> None:
    """Time and memory against the number of items, on logarithmic axes.

    Raises:
      DataError: the file cannot be written, or its ending names no format of pictures.
    """
    figure, panels = style.figure(1, len(found), width=12.0, height=4.0)
    for panel, (title, ways) in zip(panels, found.items(), strict=True):
        for place, (way, values) in enumerate(ways.items()):
            shown = style.OURS if not place else style.GREYS[place - 1]
            items = sorted(values)
            style.line(panel, items, [values[one] for one in items], shown, text=way)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.margins(x=0.25)
        panel.set_xlabel("items of rank 32")
        style.head(panel, "", f"{title}, logarithmic")
    style.save(figure, path, title="serving: time and memory")


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving_figure", description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    given = parser.parse_args(arguments)
    try:
        draw(lines(json.loads(given.report.read_text(encoding="utf-8"))), given.picture)
    except (OSError, ValueError) as error:
        print(f"serving_figure: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
