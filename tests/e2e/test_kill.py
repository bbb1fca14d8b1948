"""Any program may be killed (SIGKILL) between any two steps: each device counts once, each round is charged once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from e2e.killing import DEVICE_HOST, DEVICES, Platform, a_task

pytestmark = pytest.mark.processes

AGGREGATOR = "trusted_aggregator.host.sqlite_storage:SqliteStorage"
SPENDING = "trusted_aggregator.state.population:Population"
CLIENTS = "server.clients"
SERVER = "server.storage.sql:Storage"
MODELS = "distributor.model_folders:IncomingFolder"
DISTRIBUTOR = "distributor.servicer:DistributorService"
ROUNDS = "trusted_aggregator.enclave.rounds:Rounds"
SUBMISSIONS = "trusted_aggregator.enclave.submissions:Submissions"
COUNTER = "odp.trust.enclave.platform:EmulatedCounter"
UPLOAD = "distributor.enclave:Upload"
SELECT = "distributor.enclave:DistributorCore.select_many"
EVIDENCE = "odp.trust.enclave.platform:EmulatedGuest.evidence"
CALLS = "device_runtime.network.services:Services"
LOG = "odp.trust.log.log_files:LogFiles"
STORE = "device_runtime.store.store:Store"


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    """Stops everything that a test started; nothing may be left behind."""
    before = set(psutil.Process().children(recursive=True))
    with contextlib.ExitStack() as stack:
        yield Platform(tmp_path, stack)
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert not left, f"left running: {left}"


@pytest.mark.proof
def test_an_aggregator_that_dies_at_any_step_keeps_what_it_acknowledged_and_charges_once(platform: Platform) -> None:
    task = a_task()
    platform.kill("aggregator")
    child = platform.start("aggregator", f"{AGGREGATOR}.apply:before")  # the round is open in memory alone
    platform.submit(task)
    platform.start(DEVICE_HOST)
    platform.died(child)
    platform.crash_through(
        "aggregator",
        [
            f"{AGGREGATOR}.apply:after",  # the open round is stored, and the server does not know
            f"{AGGREGATOR}.add:before:2",  # contributions are counted, not stored
            f"{AGGREGATOR}.add:after:2",  # stored, not acknowledged
            f"{AGGREGATOR}.wait_for:before",  # the set is closed, its charge is in the enclave's memory alone
            f"{AGGREGATOR}.apply:before",  # charged in memory alone
            f"{AGGREGATOR}.apply:after",  # the charge is stored, the counters do not know
            f"{AGGREGATOR}.apply:before:2",  # the release is signed in memory alone
            f"{AGGREGATOR}.erase:before",  # the release is stored, the contributions still lie there
        ],
        also="server",
    )
    # In the second round, after what the last death left was erased: nobody heard of the stored release.
    platform.crash_through("aggregator", [f"{AGGREGATOR}.erase:after:2"], also="server")
    platform.start("aggregator")
    platform.check(task)


@pytest.mark.proof
def test_a_server_that_dies_at_any_step_goes_on_where_it_was(platform: Platform) -> None:
    task = a_task()
    platform.kill("server")
    platform.submit_to_dying_server(task, [f"{SERVER}.add_task:before", f"{SERVER}.add_task:after"])
    platform.crash_through(
        "server",
        [
            f"{SERVER}.add_first_version:before",
            f"{SERVER}.add_first_version:after",
            f"{CLIENTS}:DistributorClient.publish:after",
            f"{LOG}.append:after:3",  # the model is in the log, and not in the database
            f"{SERVER}.mark_published:after",
            f"{CLIENTS}:AggregatorClient.open_round:after",
            f"{SERVER}.open_round:after",
        ],
    )
    platform.start("server")
    platform.submit(task)
    # Not before: the longer the devices meet a dead server, the longer they wait until they ask again.
    platform.start(DEVICE_HOST)
    platform.until(lambda: platform.held(0) > 0, what="the first contributions")
    platform.kill("server")
    platform.crash_through(
        "server",
        [
            f"{SERVER}.set_contributions:after",
            f"{CLIENTS}:AggregatorClient.close_round:after",
            f"{LOG}._store:before:2",  # entries and hashes of a batch without a checkpoint
            f"{LOG}._store:after:2",  # the release is in the log, and not in the database
            f"{SERVER}.release_round:after",
            f"{SERVER}.apply_round:before",
            f"{SERVER}.apply_round:after",
            f"{CLIENTS}:AggregatorClient.close_round:before",
            f"{SERVER}.end_task:before",
            f"{SERVER}.end_task:after",
        ],
    )
    platform.start("server")
    platform.check(task)


@pytest.mark.proof
def test_a_distributor_that_dies_at_any_step_holds_whole_models_or_none(platform: Platform) -> None:
    task = a_task()
    platform.kill("distributor")
    child = platform.start("distributor", f"{MODELS}.write_table:after")  # half a model
    platform.submit(task)
    platform.start(DEVICE_HOST)
    platform.died(child)
    platform.crash_through(
        "distributor",
        [
            f"{MODELS}.commit:after",  # on the disk, not in the enclave
            f"{DISTRIBUTOR}.select:before:5",
            f"{DISTRIBUTOR}.select:after:9",
            f"{MODELS}.commit:before",  # of the second version
            f"{DISTRIBUTOR}.publish:after",  # nobody heard of it
        ],
    )
    platform.start("distributor")
    platform.check(task)


# CI kills such a host twice in test_soak.py, and a device at each step in device_runtime/round/test_participation.py.
@pytest.mark.proof
def test_a_device_host_that_dies_at_any_step_sends_each_contribution_once(platform: Platform) -> None:
    task = a_task()
    platform.submit(task)
    storing = [
        f"{STORE}.fill:after:10",  # a third of the devices have their data
        f"{CALLS}.select:after:5",  # rows came, nothing is stored
        f"{STORE}.prepare:before:9",
        f"{STORE}.prepare:after:9",  # stored, not sent
    ]
    sending = [
        f"{CALLS}.submit:before:5",  # about to be sent
        f"{CALLS}.submit:after:5",  # sent, not noted
        f"{STORE}.settle:before:5",  # the answer is there, not noted
        f"{STORE}.settle:after:5",
        "device_runtime.host.fleet:Fleet._write_statistics:before:2",
    ]
    for point in (*storing, *sending):
        platform.crash_through(DEVICE_HOST, [point])
        platform.compare_ledgers()
    platform.start(DEVICE_HOST)
    platform.check(task)


@pytest.mark.slow
@pytest.mark.parametrize(
    "idle",
    [
        [("distributor", "platform")],
        pytest.param([("distributor", "enclave"), ("aggregator", "platform")], marks=pytest.mark.proof),
    ],
    ids=["one of each", "the others"],
)
def test_an_enclave_or_a_platform_that_is_killed_ends_its_service_which_then_goes_on(
    platform: Platform, idle: list[tuple[str, str]]
) -> None:
    """Those of ``idle`` services, from outside; then the aggregator's enclave while devices contribute."""
    task = a_task()
    platform.submit(task)
    for name, which in idle:
        platform.kill_inside(name, which)
        platform.up_or_dead(platform.start(name))
    platform.start(DEVICE_HOST)
    platform.until(lambda: platform.held(0) > 0, what="the first contributions")
    platform.kill_inside("aggregator", "enclave")
    platform.start("aggregator")
    platform.check(task)


@pytest.mark.proof
def test_host_enclave_platform_and_server_die_at_any_step_of_three_rounds_and_nothing_changes(
    tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    """All three of a service end together, whichever dies; started again, they go on where they were."""
    platform = Platform(tmp_path, stack, armed=True)
    task = a_task(rank=2)
    for name in ("aggregator", "distributor"):
        platform.kill(name)
    distributor = platform.start("distributor", f"enclave/{UPLOAD}.add:after")  # half a model is in the enclave
    aggregator = platform.start("aggregator", f"enclave/{ROUNDS}.open_round:after")  # opened in its memory alone
    platform.submit(task)
    platform.ended(distributor)
    # Held by the enclave and on the disk, and nobody heard of it.
    platform.crash_through("distributor", [f"enclave/{UPLOAD}.finish:after"], also="server")
    platform.up_or_dead(platform.start("distributor"))
    platform.kill_and_restart("server")
    platform.ended(aggregator)
    platform.start(DEVICE_HOST)
    platform.crash_through(
        "aggregator",
        [
            f"platform/{EVIDENCE}:before",  # a device waits for evidence
            f"enclave/{SUBMISSIONS}.submit_batch:before:2",
            f"enclave/{SUBMISSIONS}.submit_batch:after:2",  # counted in its memory, the host does not know
            f"enclave/{SPENDING}.charge:before",
            f"enclave/{SPENDING}.charge:after",  # charged in its memory, not stored
            f"platform/{COUNTER}.advance:before:3",  # after two at start: the charge is stored, no counter knows
            f"platform/{COUNTER}.advance:after",  # at the next start: one of the two counters moved
            f"enclave/{SPENDING}.commit:after",  # charged, no noise was added
            f"enclave/{ROUNDS}.seal_release:after",  # the release is made, the host does not know
            f"{AGGREGATOR}.apply:before:2",  # the host knows, and did not store it
            f"{AGGREGATOR}.erase:before",  # stored and in force, the contributions still lie there
            f"enclave/{ROUNDS}.release:after",  # nobody heard of it
        ],
        also="server",
    )
    # The second round: the server's own steps, then enclaves and platforms from outside.
    # The server first: it would learn of the release before it dies.
    platform.kill("server")
    platform.start("aggregator")
    platform.crash_through("server", [f"{SERVER}.release_round:before", f"{SERVER}.apply_round:after"])
    platform.kill_inside("distributor", "platform")
    # Half of the devices get their rows, so that the round cannot end while something is killed.
    distributor = platform.start("distributor", f"enclave/{SELECT}:after:{DEVICES // 2}")
    platform.up_or_dead(distributor)
    platform.start("server")
    platform.until(lambda: platform.held(1) > 0, what="the second round")
    platform.ended(distributor)
    platform.kill_inside("aggregator", "enclave")
    platform.up_or_dead(platform.start("aggregator"))
    platform.kill_inside("aggregator", "platform")
    aggregator = platform.start("aggregator", f"enclave/{ROUNDS}.open_round:before")
    points = [f"enclave/{SELECT}:before:3", f"enclave/{SELECT}:after:3"]
    platform.crash_through("distributor", points, also=DEVICE_HOST)
    platform.start("distributor")
    platform.until_logged("aggregator", "round_released", round=1)
    # And the third, which opens later.
    platform.ended(aggregator)
    platform.up_or_dead(platform.start("aggregator"))
    platform.kill_and_restart("server")
    platform.check(task)


# CI kills every program once, one after the other, in test_soak.py.
@pytest.mark.proof
@pytest.mark.slow
def test_all_programs_killed_at_once_lose_nothing(platform: Platform) -> None:
    """As a power cut would, but for the page cache: in the middle of the contributions, and while a round is closed."""
    task = a_task()
    platform.submit(task)
    platform.start(DEVICE_HOST)
    platform.until(lambda: platform.held(0) >= DEVICES // 4, what="a quarter of the contributions")
    platform.kill_and_restart_all()
    platform.until_logged("aggregator", "round_charged", round=0)
    platform.kill_and_restart_all()
    platform.check(task)
