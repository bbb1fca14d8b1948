"""Seeded trials of crashes, power cuts, clocks and disks: ``python tests/faults/campaign.py --seed 1 --trials 200``.

Each trial runs one task on real services in one of ten configurations, with one kind of fault while it runs. What it
does follows from the seed and its number alone, as far as the moments of real processes do; ``--from`` goes on with a
later trial. A trial passes where, in the end:

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
import errno
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The tests' folders have names of packages, which come first.
sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

if TYPE_CHECKING:
    from faults.deployment import Deployment
    from faults.device_host import DeviceHost
    from task_combinations import Combination

DAY = 86_400.0
#: name -> (algorithm, aggregation, sampling, broadcast, leaves), as of ``task_combinations``.
CONFIGURATIONS: dict[str, tuple[str, str, str, str, int]] = {
    "enclave": ("ratings", "enclave", "full", "enclave", 0),
    "masked": ("statistics", "masked", "full", "", 0),
    "secagg+": ("statistics", "secagg+", "full", "", 0),
    "tree": ("ratings", "enclave", "full", "enclave", 2),
    "stream": ("dpftrl", "enclave", "full", "", 0),
    "sampled": ("fedavg", "enclave", "enclave_poisson", "", 0),
    "implicit": ("implicit", "enclave", "full", "all", 0),
    "shuffled": ("shuffled_statistics", "enclave", "full", "", 0),
    "searches": ("heavy_hitters", "enclave", "full", "", 0),
    "private-fl": ("private_fl", "enclave", "full", "", 0),
}
#: Tasks of one deployment, whose enclave has at most 24 populations.
_TASKS = 16
_LEAPS = (400 * DAY, -400 * DAY, DAY, -DAY, 3600.0, -3600.0)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a trial ended: ``state`` is "finished", "failed" (with a reason) or "BROKEN"."""

    trial: int
    configuration: str
    kind: str
    state: str
    told: str
    seconds: float


def _crash(deployment: Deployment, devices: DeviceHost, draws: random.Random) -> str:
    """One to three programs are killed at random moments, or their enclave or platform process is; or the devices."""
    told = []
    for _ in range(draws.randint(1, 3)):
        time.sleep(draws.uniform(0.0, 1.5))
        name, inside = draws.choice([*deployment.names, _DEVICES]), draws.choice((0, 0, 1, 2))
        if name == _DEVICES:
            devices.kill()
            devices.start()
            told.append(name)
            continue
        deployment.kill(name, inside=inside)
        deployment.start(name)
        told.append(f"{name}{'+' * inside}")
    return " ".join(told)


def _power(deployment: Deployment, _: DeviceHost, draws: random.Random) -> str:
    """The machine of all services loses its power at a random moment."""
    moment = draws.uniform(0.0, 3.0)
    time.sleep(moment)
    deployment.lose_power(draws)
    return f"after {moment:.1f} s"


def _clock(deployment: Deployment, _: DeviceHost, draws: random.Random) -> str:
    """The clock leaps for some seconds; half the time, a program starts meanwhile."""
    seconds, lasts = draws.choice(_LEAPS), draws.uniform(1.0, 4.0)
    time.sleep(draws.uniform(0.0, 1.0))
    restarted = draws.choice([*deployment.names, *[""] * len(deployment.names)])
    if restarted:
        deployment.kill(restarted)
        deployment.start(restarted)
    deployment.leap(seconds, lasts=lasts)
    return f"{seconds / DAY:+.2g} days for {lasts:.0f} s {restarted}"


def _disk(deployment: Deployment, _: DeviceHost, draws: random.Random) -> str:
    """One program starts on a disk on which one write or one sync fails."""
    name, number = draws.choice(deployment.names), draws.randint(1, 60)
    code = draws.choice((errno.ENOSPC, errno.EIO))
    faults = draws.choice(({"FAULTS_FAIL_SYNC": str(number)}, {"FAULTS_FAIL_WRITE": f"{number}:{code}"}))
    deployment.kill(name)
    child = deployment.start(name, **faults)
    until = time.monotonic() + draws.uniform(4.0, 8.0)
    while child.process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    if child.process.poll() is not None:
        child.stop()
        deployment.start(name)
    return f"{name} {' '.join(f'{one}={value}' for one, value in faults.items())}"


def _upgrade(deployment: Deployment, _: DeviceHost, draws: random.Random) -> str:
    """The aggregator is handed over to the enclave of other code, and mostly something is killed meanwhile."""
    time.sleep(draws.uniform(0.0, 2.0))
    return deployment.upgrade(draws)


KINDS: dict[str, Callable[[Deployment, DeviceHost, random.Random], str]] = {
    "crash": _crash, "power": _power, "clock": _clock, "disk": _disk, "upgrade": _upgrade,
}  # fmt: skip
_DEVICES = "devices"


def _combination(configuration: str) -> Combination:
    from task_combinations import Combination

    algorithm, aggregation, sampling, broadcast, _ = CONFIGURATIONS[configuration]
    return Combination(algorithm, aggregation, sampling, broadcast)


def _trial(deployment: Deployment, trial: int, configuration: str, kind: str, draws: random.Random) -> tuple[str, str]:
    """(state, what happened). Raises AssertionError, Stuck where something does not hold."""
    from faults.device_host import DeviceHost, Plan
    from faults.verdicts import require_named_failure

    from odp.v1 import server_pb2

    combination = _combination(configuration)
    name = f"trial-{trial}"
    task = dataclasses.replace(combination.task(""), name=name, population=name)
    deployment.serving()
    handle = deployment.until(lambda: deployment.connection.submit(task), what="the receipt of the task")
    folder = deployment.root.with_name(f"{deployment.root.name}.{name}")
    with contextlib.ExitStack() as stack:
        plan = Plan(
            root=str(deployment.root), server_address=deployment.services.server_address,
            combination=CONFIGURATIONS[configuration][:4], population=name, folder=str(folder),
        )  # fmt: skip
        devices = DeviceHost(plan)
        stack.callback(devices.kill)
        told = KINDS[kind](deployment, devices, draws)

        def ended() -> Any:
            devices.require_alive()
            status = handle.status()
            return status if status.state != server_pb2.TaskStatus.STATE_ACTIVE else None

        status = deployment.until(ended, what=f"the end of the task ({kind}: {told})")
    deployment.serving()
    failed = status.state == server_pb2.TaskStatus.STATE_FAILED
    if failed:
        require_named_failure(configuration, status.failure)
    _check(deployment, status, combination, folder, failed=failed)
    return ("failed", f"{told}: {status.failure}") if failed else ("finished", told)


def _check(deployment: Deployment, status: Any, combination: Combination, folder: Path, *, failed: bool) -> None:
    """Everything that holds after a task, whatever happened."""
    import pytest
    from faults.verdicts import require_charged_as_counted

    from device_runtime import Store
    from odp.enclave.reference_values import ReferenceValues
    from odp.signed.task import open_task
    from odp.transparency.audit import audit
    from odp.transparency.sources import LogFolder
    from odp.v1 import common_pb2

    definition = open_task(status.task)
    if not failed:
        assert len(status.rounds) == status.planned_rounds
        assert [entry.contributions for entry in status.rounds] == [combination.devices] * status.planned_rounds
    pins = ReferenceValues.load(deployment.services.reference_values)
    report = audit(LogFolder(deployment.root / "server" / "log"), pins)
    (found,) = [task for task in report.tasks if task.population == definition.population]
    released = [one.release.release for one in status.rounds if one.HasField("release")]
    assert found.rounds == len(released), "each release is in the log"
    ledger = deployment.until(lambda: deployment.connection.ledger(status), what="the ledger").ledger()
    ledger.verify()
    rounds = [entry.round for entry in ledger.entries if entry.events]
    assert rounds == sorted(set(rounds)), "each round is charged once"
    assert found.charged_epsilon <= definition.privacy.epsilon * (1 + 1e-9)
    if not failed:
        assert rounds == list(range(status.planned_rounds)), "nothing else is charged"
        spent = common_pb2.Release.FromString(released[-1]).epsilon_spent
        assert found.epsilon == pytest.approx(spent, rel=1e-9), "what the enclave states follows from the releases"
        assert found.charged_epsilon == pytest.approx(spent, rel=1e-9), "and from the charges"
    charged = {}
    for path in sorted(folder.glob("devices/*/*.sqlite")):
        with Store.open(path) as store:
            charged[path.stem] = [charge.round for charge in store.charged()]
    assert len(charged) == combination.devices
    require_charged_as_counted(charged, rounds, without_sum=status.rounds[-1].round if failed else None)


class Campaign:
    """Trials on deployments that are made as they are needed."""

    def __init__(self, root: Path, stack: contextlib.ExitStack) -> None:
        from faults.disk import library

        self._root, self._stack, self._layer = root, stack, library(root)
        self._deployments: dict[int, tuple[Deployment, contextlib.ExitStack]] = {}
        self._made = 0

    def _deployment(self, leaves: int, *, upgradable: bool) -> Deployment:
        from faults.deployment import Deployment

        found = self._deployments.get(leaves)
        if found is not None and (upgradable or found[0].tasks >= _TASKS):
            self._drop(leaves)
            found = None
        if found is None:
            own = contextlib.ExitStack()
            self._stack.callback(own.close)
            self._made += 1
            found = (
                Deployment(
                    self._root / f"services-{self._made}", self._layer, own, leaves=leaves, upgradable=upgradable
                ),
                own,
            )
            self._deployments[leaves] = found
        found[0].tasks += 1
        return found[0]

    def _drop(self, leaves: int) -> None:
        found = self._deployments.pop(leaves, None)
        if found is not None:
            found[1].close()

    def run(self, seed: int, trial: int, kinds: list[str]) -> Outcome:
        """One trial; what is broken afterwards is not used again."""
        draws = random.Random(f"{seed}/{trial}")
        configuration = list(CONFIGURATIONS)[trial % len(CONFIGURATIONS)]
        kind = kinds[draws.randrange(len(kinds))]
        leaves, began = CONFIGURATIONS[configuration][4], time.monotonic()
        try:
            deployment = self._deployment(leaves, upgradable=kind == "upgrade")
            state, told = _trial(deployment, trial, configuration, kind, draws)
            if kind == "upgrade":
                self._drop(leaves)
        except Exception as error:
            state, told = "BROKEN", f"{type(error).__name__}: {error}"
            found = self._deployments.get(leaves)
            if found is not None:
                told += f" (logs: {found[0].root / 'logs'})"
            self._drop(leaves)
        return Outcome(trial, configuration, kind, state, " ".join(told.split()), time.monotonic() - began)


def tell(line: str) -> None:
    """One line of progress."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Runs the campaign; returns 0 where everything holds."""
    parser = argparse.ArgumentParser(description="Seeded faults under real services, and what must hold afterwards.")
    parser.add_argument("--seed", type=int, default=1, help="what is drawn follows from it")
    parser.add_argument("--trials", type=int, default=200, help="how many trials")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first trial")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"some of {', '.join(KINDS)}")
    parser.add_argument("--keep", type=Path, help="folder that keeps the files of all services; default: none is kept")
    given = parser.parse_args()
    kinds = given.kinds.split(",")
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        parser.error(f"--kinds: {', '.join(unknown)} is none of {', '.join(KINDS)}")
    outcomes = []
    with contextlib.ExitStack() as stack:
        root = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="odp-campaign-")))
        root.mkdir(parents=True, exist_ok=True)
        campaign = Campaign(root, stack)
        for trial in range(given.first, given.first + given.trials):
            outcome = campaign.run(given.seed, trial, kinds)
            outcomes.append(outcome)
            tell(
                f"{trial:4d}  {outcome.configuration:<10}  {outcome.kind:<7}  {outcome.state:<8}  "
                f"{outcome.seconds:5.1f} s  {outcome.told[:400]}"
            )
    broken = [outcome for outcome in outcomes if outcome.state == "BROKEN"]
    counted = collections.Counter((outcome.configuration, outcome.state) for outcome in outcomes)
    tell(f"seed {given.seed}, trials {given.first} to {given.first + given.trials - 1}")
    for (configuration, state), count in sorted(counted.items()):
        tell(f"  {configuration:<10}  {state:<8}  {count}")
    tell(f"{len(outcomes) - len(broken)} of {len(outcomes)} trials hold" + ("" if broken else ": everything holds"))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
