"""What a person gets wrong: one line that says what to do, a non-zero exit code, no trace, nothing half-written."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from e2e.killing import DATA, DEVICE_HOST, Platform, a_task
from e2e.world import POPULATION, World, small_task

from odp.cli import main as cli
from odp.cli.task import _EXAMPLE as TASK_FILE
from odp.datasets import load
from odp.operations.local.processes import ODP

SECONDS = 300.0
#: A size that the files of a program in the middle of a round are above, and its log is below; a model is smaller.
FULL_BYTES = {"aggregator": 8192, DEVICE_HOST: 8192, "server": 8192, "distributor": 200}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every test works in its own empty folder; a process that is left behind fails it."""
    monkeypatch.chdir(tmp_path)
    before = set(psutil.Process().children(recursive=True))
    yield tmp_path
    left = [child for child in psutil.Process().children(recursive=True) if child not in before]
    assert not left, f"left running: {left}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Services that serve; one submitted task whose round is open."""
    with contextlib.ExitStack() as stack:
        started = World(tmp_path_factory.mktemp("world")).start(stack)
        handle = started.connection.submit(small_task(load(DATA)))
        until(lambda: bool(handle.status().rounds))
        yield started


def odp_fails(*arguments: str, code: int = 1, processes: bool = False) -> str:
    """Runs `odp`, here or as a process; checks the form of its failure; returns its one line."""
    if processes:
        done = subprocess.run([*ODP, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)
        return the_line(done.stderr, done.stdout, done.returncode, code)
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["odp", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    return the_line(err.getvalue(), out.getvalue(), ended.value.code, code)


def the_line(err: str, out: str, got: object, code: int) -> str:
    """The one line of the error, which is the last of stderr; before it stand log lines at most."""
    assert got == code, f"exit code {got}, not {code}: {err}"
    assert "Traceback" not in err + out
    lines = [line for line in err.splitlines() if line.startswith("odp: ")]
    assert len(lines) == 1, err
    assert err.endswith(lines[0] + "\n"), err
    assert "internal error" not in err or code == 70
    return lines[0]


def until(ready: object, *, seconds: float = SECONDS) -> None:
    """Waits until ``ready()`` is true."""
    end, pause = time.monotonic() + seconds, threading.Event()
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not come"
        pause.wait(0.02)


def write(path: str, text: str) -> str:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return path


def task_file(*changes: tuple[str, str], name: str = "task.toml") -> str:
    text = TASK_FILE
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return write(name, text)


# Task files


@pytest.mark.parametrize(
    ("before", "after", "parts"),
    [
        ("rank = 2", "rank = ", ("task.toml", "not valid TOML", "line 7")),
        ("epsilon = 8.0", "epsilom = 8.0", ("'epsilom'", "task.toml:14", "did you mean 'epsilon'?")),
        ("[training]", "[trainig]", ("'trainig'", "task.toml:17", "did you mean 'training'?")),
        ("rank = 2", 'rank = "two"', ("task.toml:7", "rank='two'", "whole number")),
        ("low = 1.0", "low = [1]", ("task.toml:10", "finite number")),
        ('name = "films"', "name = 3", ("task.toml:2", "name=3")),
        ('kind = "dpam"', "kind = 4", ("task.toml:18", "Unknown kind 4", "dpam")),
        ("epsilon = 8.0", "epsilon = 0", ("task.toml:14", "epsilon=0.0", "> 0")),
        ("epsilon = 8.0", "epsilon = -2", ("task.toml:14", "epsilon=-2.0", "> 0")),
        ("epsilon = 8.0", "epsilon = nan", ("task.toml:14", "epsilon=nan")),
        ("delta = 1e-6", "delta = 0.001", ("task.toml:15", "delta=0.001", "users=6040")),
        ("delta = 1e-6", "", ("task.toml:13", "lacks 'delta'")),
        ("goal = 6040", "goal = 10", ("task.toml:22", "goal=10", "from 100")),
    ],
)
def test_a_wrong_task_file_is_named_with_its_line(before: str, after: str, parts: tuple[str, ...]) -> None:
    path = task_file((before, after))
    for command in (["task", "show", path], ["simulate", path], ["task", "submit", path]):
        line = odp_fails(*command)
        assert all(part in line for part in parts), line


def test_a_task_file_that_is_no_text_or_no_file_is_refused() -> None:
    Path("task.toml").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in odp_fails("task", "show", "task.toml")
    assert "cannot read the task file nowhere.toml" in odp_fails("task", "show", "nowhere.toml")
    Path("folder.toml").mkdir()
    assert "Is a directory" in odp_fails("task", "show", "folder.toml")


def test_an_existing_file_is_not_overwritten() -> None:
    write("task.toml", "mine")
    assert "task.toml" in odp_fails("task", "new")
    assert Path("task.toml").read_text() == "mine"
    assert "No such file" in odp_fails("task", "new", "no/such/folder/task.toml")


# Data


@pytest.mark.parametrize(
    ("file", "text", "parts"),
    [
        ("d/ratings.dat", "1::1::5::9\n1::2::9::9\n", ("ratings.dat", "line 2", "outside [1, 5]")),
        (
            "d/ratings.csv",
            "userId,movieId,rating,timestamp\n1,1,nan,5\n",
            ("ratings.csv", "line 2", "no number", "'rating'"),
        ),
        ("d/ratings.csv", "", ("ratings.csv", "the file is empty")),
    ],
)
def test_ratings_out_of_bounds_or_not_a_number_are_refused_with_their_line(
    file: str, text: str, parts: tuple[str, ...]
) -> None:
    write(file, text)
    for command in (
        ["simulate", task_file(), "--data", "d"],
        ["demo", "--data", "d", "--output", "out"],
        ["device", "run", "--population", POPULATION, "--data", "d", "--state", "devices"],
    ):
        line = odp_fails(*command)
        assert all(part in line for part in parts), line
    assert not Path("devices").exists()


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ("no/such/folder", "neither a known data set nor an existing path"),
        ("synthetic:n_user=5", "did you mean 'n_users'?"),
        ("synthetic:n_users=0", "n_users=0"),
        ("synthetic:n_users=many", "n_users"),
    ],
)
def test_an_unknown_data_set_is_refused(data: str, part: str) -> None:
    for command in (["simulate", task_file(), "--data", data], ["demo", "--data", data, "--output", "out"]):
        assert part in odp_fails(*command)


def test_data_that_do_not_fit_the_task_are_refused_before_anything_is_computed() -> None:
    line = odp_fails("simulate", task_file(), "--data", DATA)
    assert "20 items" in line
    assert "items=3706" in line
    narrow = task_file(("items = 3706", "items = 20"), ("high = 5.0", "high = 3.0"))
    assert "outside the task's bounds" in odp_fails("simulate", narrow, "--data", DATA)
    loose = task_file(("items = 3706", "items = 20"), ("delta = 1e-6", "delta = 0.009"), ("6040", "110"))
    assert "users=1200" in odp_fails(
        "simulate", loose, "--data", "synthetic:n_users=1200,n_items=20,ratings_per_user=8"
    )
    fitting = task_file(("items = 3706", "items = 20"))
    assert "seed=-1" in odp_fails("simulate", fitting, "--data", DATA, "--seed", "-1")


# The demo


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--devices", "0"], "devices=0"),
        (["--devices", "99999"], "devices=99999"),
        (["--devices", "500", "--data", "synthetic:n_users=120,n_items=60"], "devices=500"),
        (["--devices", "30"], "30"),
        (["--rounds", "-1"], "rounds=-1"),
        (["--rounds", "1"], "rounds=1"),
        (["--rounds", "1000"], "rounds=1000"),
        (["--epsilon", "-1"], "epsilon=-1.0"),
        (["--epsilon", "0"], "epsilon=0.0"),
        (["--epsilon", "inf"], "epsilon=inf"),
        (["--delta", "0.5"], "delta=0.5"),
        (["--delta", "0.003"], "users=400"),
        (["--rank", "-1"], "rank=-1"),
        (["--seed", "-1"], "seed=-1"),
    ],
)
def test_a_demo_that_cannot_work_starts_nothing(options: list[str], part: str) -> None:
    assert part in odp_fails("demo", "--output", "out", "--state", "state", *options)
    assert not Path("state").exists()


def test_a_demo_whose_results_could_not_be_written_starts_nothing() -> None:
    write("file", "")
    assert "cannot write to file" in odp_fails("demo", "--output", "file/out", "--state", "state")
    assert not Path("state").exists()


# Services that are away, or others than expected


def test_a_service_that_is_away_is_named(world: World, folder: Path) -> None:
    shutil.copytree(world.root / "ca", "state/ca")
    shutil.copytree(world.root / "server", "state/server")
    shutil.copy(world.reference_values, "state/reference_values.json")
    for command in (
        ["task", "submit", task_file(), "--state", "state"],
        ["task", "list", "--state", "state"],
        ["device", "recommend", "--population", POPULATION, "--services", "state"],
    ):
        assert "nobody answers at 127.0.0.1:1;" in odp_fails(*command, "--server", "127.0.0.1:1")
    assert "host:port" in odp_fails("task", "list", "--state", "state", "--server", "127.0.0.1")
    assert "is no state folder of `odp up`; start it first" in odp_fails("task", "list", "--state", "nowhere")


@pytest.mark.processes
def test_a_device_host_waits_for_services_that_are_away_and_says_so_once(world: World) -> None:
    log = Path("host.log")
    with log.open("w") as output:
        host = subprocess.Popen([*ODP, *device_run(world, "--server", "127.0.0.1:1")], stdout=output, stderr=output)
    try:
        until(lambda: " outage " in log.read_text())
        # The first pauses are over when it asked again; a second line would be in the log by then.
        with contextlib.suppress(subprocess.TimeoutExpired):
            host.wait(3.5)
        assert host.poll() is None
        assert log.read_text().count(" outage ") == 1
        assert "nobody answers at 127.0.0.1:1" in log.read_text()
    finally:
        host.terminate()
        host.wait(SECONDS)
    assert host.returncode == 0
    assert "Traceback" not in log.read_text()


def device_run(world: World, *changes: str) -> list[str]:
    options = {"--server": world.server.address, "--services": str(world.root), "--state": "devices", "--data": DATA}
    options |= {"--min-cohort": "20", **dict(zip(changes[::2], changes[1::2], strict=True))}
    return ["device", "run", "--population", POPULATION, *(word for pair in options.items() for word in pair)]


def other_platform(world: World) -> str:
    """Reference values of the same code and policies on a platform of somebody else."""
    from odp.operations.local.log_setup import reference_values

    addresses = {"distributor": (world.distributor.address,), "aggregator": (world.aggregator.address,)}
    reference_values(Path("elsewhere"), world.policy, addresses=addresses).save(Path("other.json"))
    return "other.json"


def other_ca() -> Path:
    from odp._system.files.state_folder import StateFolder
    from odp.transport.tls import development_identity

    with StateFolder.open("other", "server") as state:
        development_identity(state, Path("otherca"))
    return Path("otherca")


@pytest.mark.processes
def test_a_device_host_ends_where_the_enclave_is_not_the_pinned_one_and_sends_nothing(world: World) -> None:
    before = world.connection.tasks()[0].rounds[0].contributions
    arguments = device_run(world, "--reference-values", other_platform(world))
    line = odp_fails(*arguments, processes=True)
    assert "evidence refused (wrong_root)" in line
    assert f"distributor at {world.distributor.address}" in line
    assert world.connection.tasks()[0].rounds[0].contributions == before == 0
    assert "select" not in world.logs.getvalue()


@pytest.mark.processes
def test_a_wrong_ca_is_named_and_nothing_is_sent(world: World) -> None:
    line = odp_fails(*device_run(world, "--ca", str(other_ca() / "ca.pem")), processes=True)
    assert f"the TLS certificate of {world.server.address} does not descend from the given CA" in line
    shutil.copytree(world.root / "server", "state/server")
    shutil.copytree("otherca", "state/ca")
    submit = ["task", "submit", task_file(), "--state", "state", "--server", world.server.address]
    assert "does not descend from the given CA" in odp_fails(*submit)
    assert len(world.connection.tasks()) == 1
    write("state/ca/ca.pem", "no certificate")
    assert "is not a PEM certificate" in odp_fails(*submit)


def test_a_wrong_operator_token_is_refused(world: World) -> None:
    shutil.copytree(world.root / "ca", "state/ca")
    write("state/server/operator.token", "A" * 43)
    assert "token" in odp_fails("task", "list", "--state", "state", "--server", world.server.address)


def test_devices_without_data_are_refused(world: World) -> None:
    line = odp_fails("device", "run", "--population", POPULATION, "--services", str(world.root), "--state", "devices")
    assert "count" in line
    arguments = [*device_run(world, "--devices", "4")]
    del arguments[arguments.index("--data") : arguments.index("--data") + 2]
    assert "--data" in odp_fails(*arguments)


# Folders, ports and disks


# All programs listen and open their folders by the same code: CI starts the one without an enclave.
_PROGRAMS = ["server", *(pytest.param(program, marks=pytest.mark.proof) for program in ("distributor", "aggregator"))]


@pytest.mark.processes
@pytest.mark.parametrize("program", _PROGRAMS)
def test_a_port_in_use_and_a_state_folder_in_use_are_named(world: World, program: str) -> None:
    line = odp_fails(program, "run", "--listen", world.server.address, "--state", program, processes=True)
    assert f"cannot listen on {world.server.address}: the port is in use" in line
    assert not (Path(program) / "address").exists()
    taken = world.root / program
    line = odp_fails(program, "run", "--listen", "127.0.0.1:0", "--state", str(taken), processes=True)
    assert f"{taken} is in use by another program (process {os.getpid()})" in line


def test_a_folder_of_another_program_or_that_cannot_be_made_is_refused(world: World) -> None:
    other_ca()
    line = odp_fails("distributor", "run", "--listen", "127.0.0.1:0", "--state", "other")
    assert "belongs to 'odp server 1'" in line
    write("file", "")
    for command in ("server", "distributor", "aggregator"):
        assert "file/state" in odp_fails(command, "run", "--listen", "127.0.0.1:0", "--state", "file/state")
    assert "file/state" in odp_fails("up", "--listen", "127.0.0.1:0", "--state", "file/state")


@pytest.mark.parametrize(
    ("command", "part"),
    [
        (["aggregator", "run", "--minimum-cohort", "-3"], "minimum_cohort=-3"),
        (["aggregator", "run", "--population-epsilon", "0"], "population_epsilon=0.0"),
        (["up", "--population-delta", "2"], "population_delta=2.0"),
        (["server", "run", "--listen", "7200"], "host:port"),
        (["server", "run", "--certificate", "x.pem"], "together"),
        (["device", "run", "--population", "A B", "--data", DATA], "population='A B'"),
        (["device", "run", "--population", "a", "--threads", "0", "--data", DATA], "threads=0"),
        (["device", "run", "--population", "a", "--max-epsilon", "nan", "--data", DATA], "max_epsilon=nan"),
    ],
)
def test_a_setting_out_of_range_makes_no_folder(command: list[str], part: str) -> None:
    assert part in odp_fails(*command, "--state", "state")
    assert not Path("state").exists()


def on_small_disk(command: list[str], *, mebibytes: int) -> list[str]:
    """``command`` with a disk of its own at ./disk, seen by it alone and gone with it."""
    mount = f'mount -t tmpfs -o size={mebibytes}m none "$PWD/disk" && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", *command]


@pytest.fixture
def small_disks() -> None:
    Path("disk").mkdir()
    with contextlib.suppress(OSError):
        if not subprocess.run(on_small_disk(["true"], mebibytes=1), capture_output=True, check=False).returncode:
            return
    pytest.skip("needs the right to mount a tmpfs in a namespace of its own (unshare)")


@pytest.mark.processes
@pytest.mark.usefixtures("small_disks")
@pytest.mark.parametrize("program", _PROGRAMS)
def test_a_full_disk_at_the_start_is_named(program: str) -> None:
    command = [*ODP, program, "run", "--listen", "127.0.0.1:0", "--state", "disk/state"]
    done = subprocess.run(
        on_small_disk(command, mebibytes=4), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    line = the_line(done.stderr, done.stdout, done.returncode, 1)
    assert "disk/state: disk full" in line
    assert "free some space" in line


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "told_by", "line", "ends"),
    [
        # CI fills the disk of a program at its start, above, and those of all stores in faults/test_faults.py.
        pytest.param("aggregator", "aggregator", "disk full", True, marks=pytest.mark.proof),
        # The limit of a file's size, which fills its disk here, is an error like any other to a device's store.
        pytest.param(
            DEVICE_HOST, DEVICE_HOST, "the disk did not store what was written", True, marks=pytest.mark.proof
        ),
        pytest.param("server", "server", "disk full", False, marks=pytest.mark.proof),
        pytest.param(
            "distributor",
            "server",
            "could not publish a model version to the distributor: the service cannot use its storage",
            False,
            marks=pytest.mark.proof,
        ),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_a_disk_that_fills_in_the_middle_of_a_round_loses_nothing(
    folder: Path, name: str, told_by: str, line: str, ends: bool
) -> None:
    """A limit on the size of files stands for the disk. What cannot be stored is not done, and done once there is room.

    Aggregator and devices end, as their memory may be ahead of their files; server and distributor wait for room.
    """
    with contextlib.ExitStack() as stack:
        platform = Platform(folder / "state", stack)
        task = a_task()
        platform.submit(task)
        platform.start(DEVICE_HOST)
        platform.until(lambda: platform.contributions(0) > 5, what="the first contributions")
        child = platform.child(name)
        resource.prlimit(child.process.pid, resource.RLIMIT_FSIZE, (FULL_BYTES[name], resource.RLIM_INFINITY))
        platform.until(lambda: line in platform.logged(told_by), what="a line about the disk")
        if ends:
            platform.until(lambda: child.process.poll() is not None, what="its end")
            log = platform.logged(name)
            assert the_line(log, "", child.process.returncode, 1).endswith(
                ("nothing was lost", "it goes on from what is stored")
            )
            child.stop()
            platform.start(name)
        else:
            assert child.process.poll() is None
            resource.prlimit(child.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        platform.check(task)


# What nobody foresaw


def test_an_unforeseen_error_is_one_line_without_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("rating 4.5 of item 17")

    monkeypatch.setattr("odp.datasets.load", broken)
    monkeypatch.delenv("ODP_TRACE", raising=False)
    line = odp_fails("simulate", task_file(), code=70)
    assert line.startswith("odp: internal error (ZeroDivisionError) in ")
    assert line.endswith("; run again with ODP_TRACE=1 for the trace")
    assert "4.5" not in line
    monkeypatch.setenv("ODP_TRACE", "1")
    monkeypatch.setattr(sys, "argv", ["odp", "simulate", "task.toml"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["task", "sumbit"], "No such command 'sumbit'"),
        (["demo", "--devices", "x"], "'--devices'"),
        (["demo", "--sed", "1"], "--sed"),
        (["task", "show"], "Missing argument"),
        (["device", "run"], "'--population'"),
    ],
)
def test_wrong_usage_is_one_line_that_points_to_the_help(arguments: list[str], part: str) -> None:
    line = odp_fails(*arguments, code=2)
    assert part in line
    assert "--help` shows what is valid" in line


# operations/local/test_processes.py stops services, and cli/test_demo.py a command that started some.
@pytest.mark.proof
@pytest.mark.processes
@pytest.mark.slow
def test_an_interrupted_program_stops_what_it_started_and_says_so() -> None:
    host = subprocess.Popen(
        [*ODP, "up", "--listen", "127.0.0.1:0", "--state", "state"], stderr=subprocess.PIPE, text=True
    )
    with host, contextlib.ExitStack() as stack:
        stack.callback(host.kill)
        assert host.stderr is not None
        assert any("Ctrl-C stops all" in line.replace("\n", " ") or "stops all" in line for line in host.stderr)
        host.send_signal(signal.SIGINT)
        assert host.stderr.read() == "stopped; `odp up --state state` goes on where it was\n"
        assert host.wait(SECONDS) == 0
