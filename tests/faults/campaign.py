"""Seeded trials of crashes, power cuts, clocks and disks: ``python tests/faults/campaign.py --seed 1 --trials 200``.

Each trial runs one task, or the trainings of a living model, on real services in one of the configurations
(``configurations.py``), with one kind of fault while it runs (``kinds.py``). What it does follows from the seed and
its number alone, as far as the moments of real processes do; ``--from`` goes on with a later trial. A trial passes
where, in the end (``trials.py``):

- the log's audit passes, beside the running server;
- the task finished with all its rounds, or failed with one of the reasons that ``verdicts.py`` names;
- ε of the ledger is that of its releases, each round was charged once, and each device counted once in each;
- each device is charged for exactly the rounds in which it counted.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

# The tests' folders have names of packages, which come first.
sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

if TYPE_CHECKING:
    from faults.deployment import Deployment

    from benchmarks.temporary_postgresql import PostgresqlServer

#: Tasks of one deployment, whose enclave has at most 24 populations.
_TASKS = 20


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a trial ended: ``state`` is "finished", "failed" (with a reason) or "BROKEN"."""

    trial: int
    configuration: str
    kind: str
    state: str
    happened: str
    seconds: float


class Campaign:
    """Trials on deployments that are made as they are needed, of the named configurations and kinds of faults."""

    def __init__(self, root: Path, stack: contextlib.ExitStack, configurations: list[str], kinds: list[str]) -> None:
        from faults.disk import library

        self._root, self._stack, self._layer = root, stack, library(root)
        self._configurations, self._kinds = configurations, kinds
        #: The services of the last trial, with their shape. Idle services of other shapes would slow the trials.
        self._current: tuple[tuple[int, bool], Deployment, contextlib.ExitStack] | None = None
        self._database: PostgresqlServer | None = None
        self._made = 0

    def run(self, seed: int, trial: int) -> Outcome:
        """One trial; services that it leaves broken are not used again."""
        from faults.configurations import CONFIGURATIONS
        from faults.trials import run_trial

        draws = random.Random(f"{seed}/{trial}")
        configuration = self._configuration(trial)
        kind = self._kinds[draws.randrange(len(self._kinds))]
        shape, began = CONFIGURATIONS[configuration].shape, time.monotonic()
        try:
            deployment = self._deployment(shape)
            state, happened = run_trial(deployment, self._layer, trial, configuration, kind, draws)
        except Exception as error:
            logs = f" (logs: {self._current[1].root / 'logs'})" if self._current else ""
            state, happened = "BROKEN", f"{type(error).__name__}: {error}{logs}"
            self._drop()
        return Outcome(trial, configuration, kind, state, " ".join(happened.split()), time.monotonic() - began)

    def in_order(self, trials: range) -> list[int]:
        """The trials, those on services of the same shape one after another."""
        from faults.configurations import CONFIGURATIONS

        return sorted(trials, key=lambda trial: (CONFIGURATIONS[self._configuration(trial)].shape, trial))

    def _configuration(self, trial: int) -> str:
        return self._configurations[trial % len(self._configurations)]

    def _deployment(self, shape: tuple[int, bool]) -> Deployment:
        """Services of this shape that trials use one after another."""
        from faults.deployment import Deployment

        from benchmarks.temporary_postgresql import PostgresqlServer

        leaves, replicated = shape
        if self._current and (self._current[0] != shape or self._current[1].tasks >= _TASKS):
            self._drop()
        if self._current is None:
            if replicated and self._database is None:
                self._database = self._stack.enter_context(PostgresqlServer.started())
            self._made += 1
            stack = self._stack.enter_context(contextlib.ExitStack())
            made = Deployment(
                self._root / f"services-{self._made}", self._layer, stack, leaves=leaves,
                database=self._database if replicated else None,
            )  # fmt: skip
            self._current = shape, made, stack
        deployment = self._current[1]
        deployment.tasks += 1
        return deployment

    def _drop(self) -> None:
        if self._current:
            current, self._current = self._current, None
            current[2].close()


def tell(line: str) -> None:
    """One line of progress."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Runs the campaign; returns 0 where everything holds."""
    from faults.configurations import CONFIGURATIONS
    from faults.kinds import KINDS

    parser = argparse.ArgumentParser(description="Seeded faults under real services, and what must hold afterwards.")
    parser.add_argument("--seed", type=int, default=1, help="what is drawn follows from it")
    parser.add_argument("--trials", type=int, default=200, help="how many trials")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first trial")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of faults, by default: %(default)s")
    parser.add_argument("--configurations", default=",".join(CONFIGURATIONS), help="by default: %(default)s")
    parser.add_argument("--keep", type=Path, help="folder that keeps the files of all services; default: none is kept")
    arguments = parser.parse_args()
    kinds, configurations = arguments.kinds.split(","), arguments.configurations.split(",")
    for option, names, of in (("--kinds", kinds, KINDS), ("--configurations", configurations, CONFIGURATIONS)):
        if unknown := sorted(set(names) - set(of)):
            parser.error(f"{option}: {', '.join(unknown)} is none of {', '.join(of)}")
    outcomes = []
    with contextlib.ExitStack() as stack:
        root = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-campaign-")))
        root.mkdir(parents=True, exist_ok=True)
        campaign = Campaign(root, stack, configurations, kinds)
        for trial in campaign.in_order(range(arguments.first, arguments.first + arguments.trials)):
            outcome = campaign.run(arguments.seed, trial)
            outcomes.append(outcome)
            happened = outcome.happened if outcome.state == "BROKEN" else outcome.happened[:400]
            tell(
                f"{trial:4d}  {outcome.configuration:<11}  {outcome.kind:<7}  {outcome.state:<8}  "
                f"{outcome.seconds:5.1f} s  {happened}"
            )
    broken = [outcome for outcome in outcomes if outcome.state == "BROKEN"]
    counted = collections.Counter((outcome.configuration, outcome.state) for outcome in outcomes)
    tell(f"seed {arguments.seed}, trials {arguments.first} to {arguments.first + arguments.trials - 1}")
    for (configuration, state), count in sorted(counted.items()):
        tell(f"  {configuration:<11}  {state:<8}  {count}")
    tell(f"{len(outcomes) - len(broken)} of {len(outcomes)} trials hold" + ("" if broken else ": everything holds"))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
