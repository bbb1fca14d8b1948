"""Children: started together, stopped together, never left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from odp.errors import ConfigurationError, ServiceError, StateError
from odp.operations.local.processes import ODP, OPEN, AdmissionRule, Child, ListenAddresses, Services
from odp.trust.enclave.reference_values import ReferenceValues

pytestmark = [pytest.mark.processes, pytest.mark.afresh]


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_services_serve_until_they_are_stopped_and_leave_nothing_running(tmp_path: Path) -> None:
    before = _children()
    with Services(tmp_path / "s") as services:
        assert set(services.children) == {"distributor", "aggregator", "issuer", "server"}
        assert len({child.address for child in services.children.values()}) == 4
        assert services.server_address == services.children["server"].address
        pinned = ReferenceValues.load(services.reference_values)
        roles = ("distributor", "aggregator", "issuer")
        assert pinned.addresses == {role: (services.children[role].address,) for role in roles}
        assert Path(pinned.emulated_vendor) == tmp_path / "s" / "vendor"
        (folder,) = (tmp_path / "s").glob("vendor")
        assert {path.name for path in folder.iterdir()} == {"vendor.key", "vendor.pem"}
        assert services.dead() is None
        killed = services.children["aggregator"]
        killed.process.kill()
        killed.process.wait()
        assert services.dead() is killed
        assert (tmp_path / "s").stat().st_mode & 0o077 == 0
    services.stop()
    assert _children() == before


@pytest.mark.parametrize("name", ["server/developer.key", "log.key", "endorser.key"])
def test_a_key_that_the_sealed_ledgers_hang_on_is_never_made_anew(tmp_path: Path, name: str) -> None:
    """A new one would be another policy, under which nothing opens; the error names the file, and nothing starts."""
    keys = ("server/developer.key", "log.key", "endorser.key")
    for made in (*keys, "aggregator/enclave.sealed", "platform/platform.json"):
        (tmp_path / made).parent.mkdir(mode=0o700, exist_ok=True)
        (tmp_path / made).write_bytes(b"made before")
    (tmp_path / name).unlink()
    before = _children()
    with pytest.raises(StateError, match=f"{name} is gone, and what .*aggregator sealed opens under this key alone"):
        Services(tmp_path).start()
    assert not (tmp_path / name).exists()
    assert _children() == before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"how": "everybody"}, "admission"),
        ({"how": "roster"}, "roster"),
        ({"roster": Path("devices.txt")}, "roster"),
    ],
)
def test_an_admission_that_is_none_is_refused(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Services(tmp_path / "s", admission=AdmissionRule(**options))


def test_a_program_that_cannot_start_says_why_and_the_others_are_stopped(tmp_path: Path) -> None:
    before = _children()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=f"aggregator did not start: cannot listen on 127.0.0.1:{port}"):
            Services(tmp_path / "s", admission=OPEN, listen=ListenAddresses(aggregator=port)).start()
    assert _children() == before


def test_a_state_folder_that_cannot_be_used_is_one_line_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("")
    with pytest.raises(StateError, match="check the path"):
        Services(tmp_path / "s").start()
    (tmp_path / "t").mkdir(mode=0o700)
    (tmp_path / "t" / "logs").write_text("")
    before = _children()
    with pytest.raises(StateError, match="check the path"):
        Services(tmp_path / "t").start()
    assert _children() == before


def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """kill -9 of `odp up`: the kernel closes the pipes that the four read, and enclaves end with their hosts."""
    parent = subprocess.Popen(
        [*ODP, "up", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "s")], stderr=subprocess.PIPE, text=True
    )
    try:
        assert parent.stderr is not None
        for line in parent.stderr:
            if line.startswith("ready"):
                break
        children = psutil.Process(parent.pid).children(recursive=True)
        assert len(children) == 4 + 2 * 2, "four programs, two of them with a platform process and an enclave"
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.communicate()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


def test_a_program_that_does_not_end_when_asked_is_killed(tmp_path: Path) -> None:
    deaf = "import signal, sys; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); sys.stdin.read()"
    child = Child("deaf", [], state=tmp_path, log=tmp_path / "log", command=["python3", "-c", deaf])
    while child.last_line() != "deaf":
        os.sched_yield()
    child.stop(deadline=0.1)
    child.stop()
    assert child.process.returncode == -signal.SIGKILL


def test_an_address_of_an_earlier_run_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "address").write_text("127.0.0.1:1\n")
    child = Child("none", [], state=tmp_path, log=tmp_path / "log", command=["python3", "-c", "print('why')"])
    with pytest.raises(ServiceError, match="none did not start: why"):
        child.wait_serving(tmp_path / "ca.pem")
    child.stop()
    assert not (tmp_path / "address").exists()


def test_a_program_that_ends_before_it_serves_keeps_the_control_address_that_others_know(tmp_path: Path) -> None:
    child = Child("slow", [], state=tmp_path, log=tmp_path / "log", command=["python3", "-c", "input()"])
    child.control_address = "127.0.0.1:5"
    try:
        with pytest.raises(ServiceError, match="did not serve within"):
            child.wait_serving(tmp_path, deadline=0.1)
    finally:
        child.stop()
    assert child.control_address == "127.0.0.1:5"


def test_a_start_that_is_interrupted_waits_for_no_program(tmp_path: Path) -> None:
    silent = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    child = Child("silent", [], state=tmp_path, log=tmp_path / "log", command=silent)
    stop = threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        child.wait_serving(tmp_path / "ca.pem", stop=stop)
    child.stop()
