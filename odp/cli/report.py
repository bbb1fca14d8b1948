"""`odp report`: a finished run as one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from odp.cli.console import print_json, results_console
from odp.cli.outputs import output_folder


def report(
    run: Annotated[Path, typer.Argument(help="Folder that `odp simulate --output` or `odp demo` wrote.")],
    output: Annotated[
        Path | None,
        typer.Option(callback=output_folder, help="Folder for report.html and report.json \\[default: RUN]."),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Write an HTML page and a JSON file about a run.

    Both show quality, ε by charge, clipping, settings and versions.
    """
    from odp.errors import DataError
    from odp.simulation.record import TEST_METRICS, read_record
    from odp.simulation.report import render_html

    record = read_record(run)
    folder = output if output is not None else run if run.is_dir() else run.parent
    page, values = folder / "report.html", folder / "report.json"
    try:
        text = render_html(record)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{run}: the run is malformed ({type(error).__name__}); run `odp simulate --output` again"
        ) from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
        # The folder of `odp demo` has its own report.json, which the demo's readers rely on.
        values = folder / "run-report.json" if record["kind"] == "platform" and output is None else values
        values.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror}; give another --output") from None
    results_console(machine=json_output).print(f"page: {page}; values: {values}")
    if json_output:
        figures = {name: record[name] for name in TEST_METRICS}
        print_json({"html": str(page), "json": str(values)} | figures)
