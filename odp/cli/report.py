"""`odp report`: a finished run, or several, as one page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from odp.cli.console import print_json, results_console
from odp.cli.outputs import output_file, output_folder
from odp.errors import DataError, OdpError

_RUNS_PAGE = "runs.html"


def _output(path: Path | None) -> Path | None:
    """A page to write, or a folder for it. Raises ConfigurationError."""
    return output_file(path) if path is not None and path.suffix == ".html" else output_folder(path)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders that `odp simulate --output` or `odp demo` wrote, or run.json."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "--out",
            callback=_output,
            help="Folder for the page and its JSON, or the page (.html) \\[default: RUN; of several: runs.html].",
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Write an HTML page about a run, or one that compares several runs.

    The page of a run opens with its verdict and shows quality, ε by charge, clipping, settings and versions. That of
    several shows what each reached and the settings in which they differ.
    """
    if len(runs) > 1:
        _compare(runs, output, json_output=json_output)
        return
    from odp.research.simulation.record import TEST_METRICS, read_record
    from odp.research.simulation.report import render_html

    run = runs[0]
    record = read_record(run)
    text = _rendered(lambda: render_html(record), str(run))
    if output is not None and output.suffix == ".html":
        page, values = output, output.with_suffix(".json")
    else:
        folder = output if output is not None else run if run.is_dir() else run.parent
        page, values = folder / "report.html", folder / "report.json"
        # The folder of `odp demo` has its own report.json, which the demo's readers rely on.
        values = folder / "run-report.json" if record["kind"] == "platform" and output is None else values
    _write(page, text)
    _write(values, json.dumps(record, indent=1, allow_nan=False) + "\n")
    results_console(machine=json_output).print(f"page: {page}; values: {values}")
    if json_output:
        figures = {name: record.get(name) for name in (*TEST_METRICS, "left_out")}
        print_json({"html": str(page), "json": str(values)} | figures)


def _compare(runs: Sequence[Path], output: Path | None, *, json_output: bool) -> None:
    from odp.research.simulation.record import TEST_METRICS, read_record
    from odp.research.simulation.report_of_runs import render_runs

    records = dict(zip(names_of(runs), (read_record(run) for run in runs), strict=True))
    text = _rendered(lambda: render_runs(records), ", ".join(map(str, runs)))
    page = Path(_RUNS_PAGE) if output is None else output if output.suffix == ".html" else output / _RUNS_PAGE
    _write(page, text)
    results_console(machine=json_output).print(f"page: {page}")
    if json_output:
        figures = {
            name: {"epsilon": record.get("epsilon"), "delta": record["delta"]}
            | {metric: record[metric] for metric in (*TEST_METRICS, "left_out") if record.get(metric)}
            for name, record in records.items()
        }
        print_json({"html": str(page), "runs": figures})


def names_of(runs: Sequence[Path]) -> list[str]:
    """A short name of each run, no two alike: its folder or file, with folders above it where that is not enough."""
    parts = [(run.parent if run.name == "run.json" else run).resolve().parts for run in runs]
    depth = 1
    while depth < max(map(len, parts)) and len({path_parts[-depth:] for path_parts in parts}) < len(parts):
        depth += 1
    names = ["/".join(path_parts[-depth:]) for path_parts in parts]
    return [name if names.count(name) == 1 else f"{name} ({place + 1})" for place, name in enumerate(names)]


def _rendered(render: Callable[[], str], runs: str) -> str:
    try:
        return render()
    except OdpError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{runs}: the run is malformed ({type(error).__name__}); run `odp simulate --output` again"
        ) from None


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path.parent}: cannot be written: {error.strerror}; give another --output") from None
