"""One query in the three modes of aggregation, in real processes over TLS, of which some die at an exact step.

There are two platforms: one whose enclave and devices add no noise, one as it is delivered. Noise is left out by
code of another measurement (``images/noiseless``) and by the program of the test's devices (``device_hosts.py``):
neither the enclave nor the device runtime has a switch for it. Every case has a task, a population, and two device
hosts: one of devices that live, and one that is killed by SIGKILL when the first of its devices reaches a step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e import crash, device_hosts
from e2e.device_hosts import Host, people
from e2e.killing import UnattackedServices, crashing_at
from scipy import stats
from selection import selected_params

import odp
from device_runtime import State, Store, store_path
from device_runtime.store.schema import Participation
from odp.errors import ServiceError
from odp.operations.local.processes import ODP, Child
from odp.services.connection import Connection, TaskHandle, connect
from odp.signed.task import open_task
from odp.trust.enclave.measurement import measure
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.v1 import common_pb2, server_pb2

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DEVICES = 10
RATES = {0: 0, 10: 1, 30: 3}
#: Before a vector is made, and after it left. modes/secagg/test_rounds.py has the sums at each step, without programs.
STEPS_IN_CI = ("send", "reveal", "unmask")
STEPS = ("advertise", "reveal", "share", "masked", "agree", "unmask")
#: Seconds that a step of a session waits for those who are dead: all cases wait at once.
STEP_SECONDS = 30.0
SECONDS = 300.0
KILLED = -9
#: Numbers of the noisy releases: so many that their variance is known to 1 %.
BINS = 20_000
#: Of each of the two tests of the law, in one case.
FALSE_ALARM = 1e-7


@dataclasses.dataclass(frozen=True)
class Case:
    """A task of one mode; ``gone`` devices die before ``step``, and live ``again`` after that."""

    mode: str
    rate: int = 0
    step: str = ""
    again: bool = False

    @property
    def gone(self) -> int:
        return RATES[self.rate]

    @property
    def counted(self) -> range:
        """Whose vectors are in the sum."""
        joins_the_next = self.again and self.step == "reveal"
        return range(0 if self.step in ("agree", "unmask") or joins_the_next else self.gone, DEVICES)

    @property
    def population(self) -> str:
        return f"{self.mode.rstrip('+')}-{self.step or 'all'}-{self.rate}" + ("-again" if self.again else "")

    def task(self, *, bins: int) -> odp.Statistics:
        secagg = {"corrupt_fraction": 0.05, "dropout_fraction": 0.3} if self.mode == "secagg+" else {}
        # A round below its goal ends once its time is up; one whose devices all come does not have to wait.
        minimum = len(self.counted) if self.again and self.step == "reveal" else DEVICES - self.gone
        alone = self.step in ("send", "advertise", "reveal")
        return odp.Statistics(
            name=self.population,
            population=self.population,
            queries={"films": odp.Histogram(bins=bins, clip=8.0)},
            privacy=odp.UserLevelDP(epsilon=4, delta=1e-6),
            cohort=odp.Cohort(
                minimum=minimum, goal=DEVICES, round_seconds=8 if alone else 600, aggregation=self.mode,
                computing_seconds=1.0, **secagg,
            ),
        )  # fmt: skip


CASES = [
    *(Case(mode, rate, "send" if rate else "") for mode in ("enclave", "masked") for rate in RATES),
    Case("secagg+"),
    *(Case("secagg+", rate, step) for step in STEPS for rate in RATES if rate),
]
#: Devices that are killed and started again, before and after their vector was made.
AGAIN = [Case("secagg+", 30, step, again=True) for step in ("reveal", "masked", "agree")]


def _in_ci(cases: list[Case], steps: Sequence[str]) -> list[Any]:
    """As parameters. CI runs those in which nobody is gone, or 30 % are before any of ``steps``; `make proof` all."""
    return [
        pytest.param(
            case, id=case.population,
            marks=[] if case.rate == 0 or (case.rate == 30 and case.step in steps) else pytest.mark.proof,
        )
        for case in cases
    ]  # fmt: skip


class NoiselessServices(UnattackedServices):
    """Services whose aggregator is the image without noise."""

    def start_child(self, name: str, port: int, *, command: Sequence[str] = ODP) -> Child:
        if name == "aggregator":
            command = crashing_at(crash.NOISELESS, crash.UNATTACKED)
        return super().start_child(name, port, command=command)

    def write_reference_values(self) -> None:
        super().write_reference_values()
        values = ReferenceValues.load(self.reference_values)
        digests = {**values.image_digests, "aggregator": (_noiseless_digest(),)}
        dataclasses.replace(values, image_digests=digests).save(self.reference_values)


@functools.cache
def _noiseless_digest() -> str:
    folder = str(crash.IMAGES)
    sys.path.insert(0, folder)
    try:
        return measure(*crash.AGGREGATORS[crash.NOISELESS]).digest
    finally:
        sys.path.remove(folder)


class Trial:
    """All cases on one platform."""

    def __init__(self, root: Path, stack: contextlib.ExitStack, cases: list[Case], *, quiet: bool, bins: int) -> None:
        self.root = root
        self.bins = bins
        kind = NoiselessServices if quiet else UnattackedServices
        pace = ["--secagg-step", str(STEP_SECONDS), "--secagg-vector", str(STEP_SECONDS), "--secagg-silent", "60"]
        policy = EnclavePolicy(role="aggregator", minimum_cohort=device_hosts.MIN_COHORT)
        self.services = stack.enter_context(kind(root, policy=policy, aggregator_options=pace))
        self.connection: Connection = stack.enter_context(connect(self.services.server_address, state=root))
        self._pause = threading.Event().wait
        self._stack, self._quiet = stack, quiet
        self.hosts: subprocess.Popen[bytes] | None = None
        self.handles: dict[Case, TaskHandle] = {case: self.connection.submit(case.task(bins=bins)) for case in cases}
        for handle in self.handles.values():  # who finds no round is told to come back much later
            self.until(lambda handle=handle: bool(handle.status().rounds))

    def begin(self) -> None:
        """Starts all device hosts, once: two platforms one after the other, so that steps do not take too long."""
        if self.hosts is not None:
            return
        plan = [dataclasses.asdict(host) for case in self.handles for host in self._hosts(case, quiet=self._quiet)]
        (self.root / "plan.json").write_text(json.dumps(plan))
        program = [sys.executable, "-P", device_hosts.__file__, str(self.root / "plan.json")]
        with (self.root / "device_hosts.log").open("ab") as errors, (self.root / "ended").open("wb") as ended:
            self.hosts = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=ended, stderr=errors)
        self._stack.callback(self.stop)

    def _hosts(self, case: Case, *, quiet: bool) -> Iterator[Host]:
        shared = {"services": str(self.root), "server": self.services.server_address, "population": case.population}
        if case.gone:
            yield Host(
                state=self.folder(case, "doomed"), first=0, count=case.gone, step=case.step, again=case.again,
                quiet=quiet, **shared,
            )  # fmt: skip
        yield Host(state=self.folder(case, "living"), first=case.gone, count=DEVICES - case.gone, quiet=quiet, **shared)

    def folder(self, case: Case, which: str) -> str:
        return str(self.root / f"{case.population}-{which}")

    def until(self, holds: object) -> None:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(ServiceError):
                if holds():  # type: ignore[operator]
                    return
            self._pause(0.1)
        pytest.fail("it did not come")

    def stop(self) -> None:
        if self.hosts is not None and self.hosts.stdin is not None:
            self.hosts.stdin.close()
            self.hosts.wait(60.0)

    def finished(self, case: Case) -> server_pb2.TaskStatus:
        """The final status of a case."""
        self.begin()
        handle = self.handles[case]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            status = handle.status()
            if status.state != server_pb2.TaskStatus.STATE_ACTIVE:
                assert status.state == server_pb2.TaskStatus.STATE_FINISHED, status.failure
                return status
            self._pause(0.1)
        log = Path(f"{self.folder(case, 'living')}.log").read_text()[-1500:]
        return pytest.fail(f"{case} did not finish: {status.rounds}\n{log}")

    def integers(self, case: Case) -> tuple[np.ndarray, float, server_pb2.TaskStatus]:
        """The released integers, how many of them are one user, and the status."""
        status = self.finished(case)
        release = common_pb2.Release.FromString(status.rounds[0].release.release)
        (tensor,) = release.tensors
        return (
            np.frombuffer(tensor.integers, "<i8"),
            2.0 ** open_task(status.task).statistics.dense.grid_bits / 8,
            status,
        )

    def how_it_ended(self, case: Case, which: str) -> int | None:
        """The exit code of a host; None while it runs."""
        lines = [json.loads(line) for line in (self.root / "ended").read_text().splitlines()]
        return next((line["code"] for line in lines if line["state"] == self.folder(case, which)), None)


def truth(case: Case, bins: int) -> np.ndarray:
    """How many of those who count have each film, int64 [bins]: clear-text counting of their records."""
    ratings = people().select_users(case.counted)
    pairs = {(user, int(item)) for user in range(ratings.n_users) for item in ratings.user(user)[0]}
    return np.bincount([item for _, item in pairs], minlength=bins)


@pytest.fixture(scope="module")
def trials(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Trial]]:
    """A platform without noise and one with it, of the cases whose tests are selected."""
    tests = {
        "off": (
            test_with_noise_off_the_sum_is_that_of_those_who_count_exactly,
            test_a_device_that_was_killed_has_in_its_ledger_what_it_gave_once,
        ),
        "on": (test_with_noise_on_the_error_is_gaussian_of_the_variance_that_is_declared,),
    }
    cases = {name: selected_params(request, "case", *of) for name, of in tests.items()}
    with contextlib.ExitStack() as stack, futures.ThreadPoolExecutor(2) as pool:
        begun = {
            name: pool.submit(Trial, tmp_path_factory.mktemp(name), stack, cases[name], quiet=name == "off", bins=bins)
            for name, bins in (("off", 40), ("on", BINS))
            if cases[name]
        }
        yield {name: trial.result() for name, trial in begun.items()}


@pytest.mark.parametrize("case", _in_ci([*CASES, *AGAIN], STEPS_IN_CI))
def test_with_noise_off_the_sum_is_that_of_those_who_count_exactly(trials: dict[str, Trial], case: Case) -> None:
    """The same integers in every mode: clear-text counts of the records of those whose vectors came."""
    trial = trials["off"]
    integers, user, status = trial.integers(case)
    assert status.rounds[0].contributions == len(case.counted)
    np.testing.assert_array_equal(integers / user, truth(case, trial.bins))
    if case.gone:
        assert trial.how_it_ended(case, "doomed") == KILLED


@pytest.mark.parametrize("case", _in_ci([*CASES[-2 * len(STEPS) :], *AGAIN], STEPS_IN_CI))
def test_a_device_that_was_killed_has_in_its_ledger_what_it_gave_once(trials: dict[str, Trial], case: Case) -> None:
    """In the ledger before the vector leaves, with nothing to send again; a session left before that costs nothing."""
    trial = trials["off"]
    status = trial.finished(case)
    sent = case.counted.start == 0
    for device in range(case.gone):

        def entries(device: int = device) -> list[Participation]:
            with Store.open(store_path(Path(trial.folder(case, "doomed")), device)) as store:
                return store.ledger()

        if case.again and case.step == "reveal":  # it joined the next session, and was told how that one ended
            trial.until(lambda entries=entries: [entry.state for entry in entries()] == [State.SENT])
        found = entries()
        assert len(found) == sent, "once, and only if its vector left"
        for entry in found:
            terms = open_task(status.task).privacy
            assert (entry.round, entry.epsilon, entry.delta) == (0, terms.epsilon, terms.delta)
            assert (entry.sealed, entry.report) == (None, None), "nothing to send again"
            assert entry.state is (State.SENT if case.step == "reveal" else State.PREPARED)


# CI has the law of noise of an enclave over services in test_agreement.py, and that of shares in
# algorithms/dense/test_shares.py.
@pytest.mark.proof
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.population)
def test_with_noise_on_the_error_is_gaussian_of_the_variance_that_is_declared(
    trials: dict[str, Trial], case: Case
) -> None:
    """What is declared: the variance v of the charge; of SecAgg+ v / m from each whose vector came, m the sharers.

    20,000 numbers: their variance and their distribution (Kolmogorov and Smirnov), each at a false alarm of 1e-7 and
    thus 4e-6 for all cases. A change of the variance by 6 % is found: a share that is missing or comes twice is 10 % at
    least (``algorithms/dense/test_shares.py`` finds smaller mistakes).
    """
    trial = trials["on"]
    integers, user, status = trial.integers(case)
    assert status.rounds[0].contributions == len(case.counted)
    release = common_pb2.Release.FromString(status.rounds[0].release.release)
    (charge,), (tensor,) = release.charges, release.tensors
    variance = (charge.noise_std / tensor.step) ** 2
    if case.mode == "secagg+":
        sharers = open_task(status.task).cohort.secagg.sharers
        assert 0 < sharers <= len(case.counted), "never less noise than is charged"
        variance *= len(case.counted) / sharers
    errors = integers - truth(case, trial.bins) * user
    found = float(np.mean(errors**2)) / variance
    low, high = (stats.chi2.ppf(tail, BINS) / BINS for tail in (FALSE_ALARM / 2, 1 - FALSE_ALARM / 2))
    assert low < found < high, f"{found:.3f} of the declared variance"
    assert stats.kstest(errors / np.sqrt(variance), "norm").pvalue > FALSE_ALARM
