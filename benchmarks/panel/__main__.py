"""``python -m benchmarks.panel run|report|list --log FOLDER``: DPAM's default beside all private methods.

``run`` computes what the folder lacks, small data sets first, and may be stopped at any time. ``report`` prints regret,
and draws it. ``list`` names the data sets.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.panel import regret, scores
from benchmarks.panel.cells import chosen, invented, real
from benchmarks.panel.scores import Plan, Trial
from odp.errors import ConfigurationError, OdpError


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says and returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        cells = (*invented(), *(real(options.real) if options.real else ()))
        cells = chosen(cells, _names(options.cells))
        if options.most is not None:
            cells = tuple(cell for cell in cells if cell.n_ratings <= options.most)
        if options.action == "list":
            for cell in cells:
                print(f"{cell.name:<16} {cell.part:<9} {cell.n_ratings or '':>9} {cell.shape}")
            return 0
        if not options.log:
            raise ConfigurationError("--log FOLDER is missing: scores are kept there")
        plan = Plan(cells, options.epsilon, options.seeds, scores.named_methods(_names(options.methods)))
        if options.action == "run":
            scores.run(plan, options.log[-1], on_trial=_Progress(len(cells)))
        else:
            _report(plan, options)
    except OdpError as error:
        print(f"panel: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("panel: interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


def _report(plan: Plan, options: argparse.Namespace) -> None:
    trials = scores.read(plan, options.log)
    if not (results := regret.judged(plan.cells, trials, features=not options.without_features)):
        raise ConfigurationError(f"{options.log[-1]} has no cell with scores of DPAM and of another method")
    print(regret.report(results, regret.rises(plan.cells, trials)))
    if options.picture is not None:
        regret.draw(results, options.picture)


class _Progress:
    def __init__(self, cells: int) -> None:
        self._cells = cells
        self._started = time.monotonic()

    def __call__(self, trial: Trial, cells_left: int) -> None:
        at = f"ε {trial.epsilon:g}" if trial.epsilon else ""
        print(
            f"{self._cells - cells_left}/{self._cells} {trial.cell:<16} {at:<5} seed {trial.seed} {trial.method:<32} "
            f"{trial.outcome.scores[0]:.4f} {trial.seconds:7.1f} s, {time.monotonic() - self._started:.0f} s in all",
            file=sys.stderr, flush=True,
        )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.panel", description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("run", "report", "list"))
    parser.add_argument(
        "--log", type=Path, action="append", metavar="FOLDER",
        help="of scores; of several, a report takes each method from the last that has it; a run writes to the last",
    )  # fmt: skip
    parser.add_argument("--real", type=Path, metavar="DIRECTORY", help="also the real data sets of this directory")
    parser.add_argument("--cells", help="names, or tuned, held-out, with commas; by default all")
    parser.add_argument("--most", type=int, metavar="RATINGS", help="leaves out cells of more")
    parser.add_argument("--epsilon", type=_numbers, default=(1.0, 2.0, 4.0, 8.0), help="with commas")
    parser.add_argument("--seeds", type=_whole_numbers, default=(1, 2, 3), help="with commas")
    parser.add_argument("--methods", help="names, or ours, others, with commas; by default all private ones")
    parser.add_argument("--without-features", action="store_true", help="judge DPAM without public item features")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="of the regret of every cell (report)")
    return parser


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
