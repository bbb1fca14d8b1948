"""A hostile service tries to get out, past Python too, and each attempt fails; real processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from device_runtime.isolated import CallLimits, HandlerFailed, IsolatedHost, MemoryStore, Reason
from odp.isolated import RIGHTS, DataKind, Handler

from .conftest import Attacker

REFUSED = {"EPERM", "EACCES", "no name service"}


def frame(message: object) -> str:
    data = json.dumps(message).encode()
    return (struct.pack(">I", len(data)) + data).hex()


@contextlib.contextmanager
def failing(reason: Reason, attacker: Attacker) -> Iterator[None]:
    """The call within fails for this reason, and writes nothing."""
    before = attacker.contents()
    with pytest.raises(HandlerFailed) as failed:
        yield
    assert failed.value.reason is reason
    assert attacker.contents() == before


# Network, files, processes, environment


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server.getsockname()[1]
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("attempt", ["tcp elsewhere", "udp", "abstract", "netlink", "dns", "listen"])
def test_it_reaches_no_network(attacker: Attacker, attempt: str) -> None:
    assert attacker.attempt(attempt) in REFUSED


def test_it_reaches_no_port_and_no_socket_of_this_machine(attacker: Attacker, listening: int, tmp_path: Path) -> None:
    assert attacker.attempt("tcp", port=listening) in REFUSED
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(0)
        assert attacker.attempt("unix", path=str(path)) in REFUSED
        with pytest.raises(BlockingIOError):
            server.accept()


def test_it_reads_no_file(attacker: Attacker, tmp_path: Path) -> None:
    store = tmp_path / "0.sqlite"
    store.write_bytes(b"ratings")
    store.chmod(0o644)
    own = Path(__file__).parent / "services" / "hostile.py"
    for path in ("/etc/passwd", store, own, "/proc/self/environ", "/proc/1/environ", "/proc/self/mem", "/dev/urandom"):
        assert attacker.attempt("read", path=str(path)) in REFUSED, path
    for path in ("/", Path.home(), tmp_path, "/proc", "/dev/fd"):
        assert attacker.attempt("list", path=str(path)) in REFUSED, path


def test_it_writes_no_file(attacker: Attacker, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for path in (tmp_path / "x", Path("/dev/shm/odp-x"), Path("/tmp/odp-x"), Path("/dev/null")):
        assert attacker.attempt("write", path=str(path)) in REFUSED, path
    assert not any((tmp_path / "x", Path("/dev/shm/odp-x"), Path("/tmp/odp-x"))[place].exists() for place in range(3))


@pytest.mark.parametrize("attempt", ["fork", "exec", "program", "spawn", "signal parent", "signal by descriptor"])
def test_it_makes_and_signals_no_process(attacker: Attacker, attempt: str) -> None:
    assert attacker.attempt(attempt) in REFUSED


def test_it_raises_no_limit(attacker: Attacker) -> None:
    # What Python makes of EPERM here.
    assert attacker.attempt("raise limit") == "ValueError"


def test_it_signals_neither_the_runtime_nor_all(attacker: Attacker) -> None:
    for process in (os.getpid(), 1, 0, -1):
        assert attacker.attempt("signal", pid=process) in REFUSED


def test_system_calls_past_python_fail_alike(attacker: Attacker) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the test's numbers are those of x86-64; _system/sandbox/test_seccomp.py has the filter of both")
    answers = attacker.attempt("syscalls")
    assert len(answers) > 100
    assert {name: came for name, came in answers.items() if came != "EPERM"} == {}


def test_it_has_no_environment(start: Callable[..., IsolatedHost], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODP_SECRET", "x")
    assert Attacker(start("hostile.py")).attempt("environment") == []


def test_n353_it_does_not_see_where_it_is_installed(attacker: Attacker) -> None:
    """Not by Python, not by C, and not by what the kernel put beside its first stack."""
    own = {sys.prefix, sys.base_prefix, sys.executable, str(Path(__file__).resolve().parents[3]), str(Path.home())}
    assert attacker.attempt("places", wanted=sorted(place for place in own if len(place) > 1)) == []


def test_it_is_as_closed_while_its_module_is_loaded(attacker: Attacker) -> None:
    came = attacker.attempt("at import")
    assert set(came) == {"read", "socket", "fork"}
    assert set(came.values()) <= REFUSED


# Time, memory, output


@pytest.mark.parametrize("attempt", ["hang", "hang uninterruptible", "spin"])
@pytest.mark.slow
def test_what_does_not_answer_is_killed_and_the_next_call_works(hasty: Attacker, attempt: str) -> None:
    before = hasty.contents()
    with pytest.raises(HandlerFailed) as failed:
        hasty.attempt(attempt)
    # Whichever limit is reached first.
    assert failed.value.reason in ({Reason.DEADLINE} if attempt == "hang" else {Reason.DEADLINE, Reason.LIMIT})
    assert hasty.contents() == before
    assert hasty.attempt("identity") is not None


def test_processor_time_ends_before_the_deadline(start: Callable[..., IsolatedHost], attacker: Attacker) -> None:
    busy = Attacker(start("hostile.py", limits=CallLimits(seconds=300.0, processor_seconds=1)))
    with failing(Reason.LIMIT, busy):
        busy.attempt("spin")


def test_it_cannot_eat_memory(attacker: Attacker) -> None:
    assert attacker.attempt("eat") == "MemoryError"
    assert attacker.attempt("eat at once") == "MemoryError"


def test_it_starts_no_thread(attacker: Attacker) -> None:
    """Each takes memory of the kernel and a number of the machine's, which no limit of a process counts."""
    # What Python makes of EPERM here.
    assert attacker.attempt("thread") == "RuntimeError"
    if os.uname().machine == "x86_64":
        assert attacker.attempt("thread past Python") == "EPERM"


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [("raise", Reason.RAISED), ("exit", Reason.RAISED), ("end", Reason.ENDED), ("crash", Reason.ENDED)],
)
def test_a_handler_that_fails_leaves_nothing_written(attacker: Attacker, attempt: str, reason: Reason) -> None:
    with failing(reason, attacker):
        attacker.attempt(attempt)
    assert attacker.attempt("identity") is not None


def test_a_huge_answer_is_cut_off(frugal: Attacker) -> None:
    with failing(Reason.RAISED, frugal):
        frugal.attempt("huge", bytes=2**17)
    with failing(Reason.MALFORMED, frugal):
        frugal.attempt("raw", bytes=(struct.pack(">I", 2**32 - 1) + b"x" * 1000).hex())


def test_it_reads_no_more_than_it_may(frugal: Attacker) -> None:
    with failing(Reason.TOO_MUCH, frugal):
        frugal.attempt("raw", bytes=4 * frame({"read": "local", "key": "private"}))


# Frames that are none


GOOD = {"value": {"result": {}}, "writes": {}}
BROKEN: dict[str, str] = {
    "no JSON": struct.pack(">I", 4).hex() + b"\xff\x00{]".hex(),
    "nothing": "00000000",
    "a list": frame([]),
    "a text": frame("done"),
    "another word": frame({"finished": GOOD}),
    "no value": frame({"done": {"writes": {}}}),
    "more keys": frame({"done": {**GOOD, "more": 1}}),
    "value is a list": frame({"done": {"value": [], "writes": {}}}),
    "writes is a list": frame({"done": {"value": {"result": {}}, "writes": []}}),
    "result is a text": frame({"done": {"value": {"result": "x"}, "writes": {}}}),
    "rows are an object": frame({"done": {"value": {"result": {}}, "writes": {"requests": {}}}}),
    "a row is a number": frame({"done": {"value": {"result": {}}, "writes": {"requests": [1]}}}),
    "local data is text": frame({"done": {"value": {"result": {}}, "writes": {"local": {"k": "no base64!"}}}}),
    "local data is a number": frame({"done": {"value": {"result": {}}, "writes": {"local": {"k": 1}}}}),
    "a key without end": frame({"done": {"value": {"result": {}}, "writes": {"local": {"k" * 600: None}}}}),
    "not a number": frame({"done": {"value": {"result": {"x": float("nan")}}, "writes": {}}}),
    "an integer of 200 digits": frame({"done": {"value": {"result": {"x": 10**200}}, "writes": {}}}),
    "text that is no text": frame({"done": {"value": {"result": {"x": "\ud800"}}, "writes": {}}}),
    "an unknown table": frame({"read": "ratings"}),
    "read of a list": frame({"read": ["local"]}),
    "a float beyond all": frame({"done": {"value": {"result": {"x": "HERE"}}, "writes": {}}}).replace(
        b'"HERE"'.hex(), b" 1e999".hex()
    ),
}


@pytest.mark.parametrize("broken", sorted(BROKEN))
def test_a_frame_that_is_none_is_refused(attacker: Attacker, broken: str) -> None:
    with failing(Reason.MALFORMED, attacker):
        attacker.attempt("raw", bytes=BROKEN[broken])


@pytest.mark.parametrize("depth", [30, 900, 100_000])
def test_deep_nesting_is_refused(attacker: Attacker, depth: int) -> None:
    inner = b"[" * depth + b"1" + b"]" * depth
    data = b'{"done": {"value": {"result": {"x": ' + inner + b'}}, "writes": {}}}'
    with failing(Reason.MALFORMED, attacker):
        attacker.attempt("raw", bytes=(struct.pack(">I", len(data)) + data).hex())


# Rights


def _pairs(allowed: str) -> list[Any]:
    pairs = [
        (handler, table) for handler in Handler for table in DataKind if table not in getattr(RIGHTS[handler], allowed)
    ]
    return [pytest.param(*pair, id=f"{pair[0].value}-{pair[1].value}") for pair in pairs]


VALUES: dict[Handler, object] = {
    Handler.ON_REQUEST: {"accepted": {}},
    Handler.ON_EXECUTE: {"result": {}},
    Handler.ON_RENDER: {"html": "<p>"},
    Handler.ON_EVENT: {},
    Handler.ON_DOWNLOAD: {},
    Handler.ON_TRAINING_EXAMPLES: {"examples": []},
}
WRITTEN: dict[DataKind, object] = {
    DataKind.EVENTS: [{"type": "x", "data": {}}],
    DataKind.REQUESTS: [{"x": 1}],
    DataKind.LOCAL: {"k": "eHg="},
    DataKind.DOWNLOADS: ["do"],
}


@pytest.mark.parametrize(("handler", "table"), _pairs("writes"))
def test_no_handler_writes_where_it_has_no_right_to(attacker: Attacker, handler: Handler, table: DataKind) -> None:
    sent = frame({"done": {"value": VALUES[handler], "writes": {table.value: WRITTEN[table]}}})
    with failing(Reason.FORBIDDEN, attacker):
        attacker.ask(handler, {"attempt": "raw", "bytes": sent})


@pytest.mark.parametrize(("handler", "table"), _pairs("reads"))
def test_no_handler_reads_where_it_has_no_right_to(attacker: Attacker, handler: Handler, table: DataKind) -> None:
    with failing(Reason.FORBIDDEN, attacker):
        attacker.ask(handler, {"attempt": "raw", "bytes": frame({"read": table.value, "prefix": ""})})


@pytest.mark.parametrize("handler", [Handler.ON_EVENT, Handler.ON_DOWNLOAD])
def test_a_handler_whose_result_goes_to_nobody_returns_none(attacker: Attacker, handler: Handler) -> None:
    sent = frame({"done": {"value": {"result": {"secret": 1}}, "writes": {}}})
    with failing(Reason.FORBIDDEN, attacker):
        attacker.ask(handler, {"attempt": "raw", "bytes": sent})


def test_downloads_are_chosen_and_not_made_up(attacker: Attacker) -> None:
    with failing(Reason.FORBIDDEN, attacker):
        attacker.ask(Handler.ON_DOWNLOAD, {})


def test_nothing_private_reaches_what_may_leave() -> None:
    """The table itself: what an app can be told comes from handlers that see nothing private, directly or by tables."""
    tainted = {table for table in DataKind if table.private}
    for _ in Handler:
        for rights in RIGHTS.values():
            if rights.reads & tainted:
                tainted |= rights.writes
    assert DataKind.DOWNLOADS not in tainted
    to_app = [handler for handler, rights in RIGHTS.items() if rights.receiver.name == "APP"]
    assert to_app == [Handler.ON_REQUEST]
    assert not RIGHTS[Handler.ON_REQUEST].reads & tainted


# From one call to another


def test_nothing_that_a_handler_leaves_in_memory_is_there_in_the_next_call(attacker: Attacker) -> None:
    assert attacker.attempt("remember", what="secret") == []
    answer = attacker.ask(Handler.ON_REQUEST, {"attempt": "remember", "what": "x"})
    assert answer.work == {"came": []}
    assert attacker.attempt("remember", what="x") == []


def test_its_process_number_does_not_count_the_calls(attacker: Attacker) -> None:
    if "namespace-process" not in attacker.host.restrictions():
        pytest.skip("this kernel refused namespace-process, and `odp device doctor` says so")
    # It is not told its number, and finds it in its memory: the first of its namespace.
    own = [1] if sys.implementation._multiarch == "x86_64-linux-gnu" else []
    for _ in range(2):
        assert attacker.attempt("identity") == [-1, -1, *own]


def test_it_has_its_channel_and_no_other_descriptor(attacker: Attacker) -> None:
    first, second = (attacker.attempt("descriptors") for _ in range(2))
    assert first == second
    assert first[:3] == [0, 1, 2]
    assert len(first) == 4


def test_it_has_no_other_descriptor_where_the_app_has_hundreds(start: Callable[..., IsolatedHost]) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(Path(os.devnull).open("rb"))
        found = Attacker(start("hostile.py")).attempt("descriptors")
    assert found[:3] == [0, 1, 2]
    assert len(found) == 4


def test_no_page_of_a_file_is_mapped_in_it(attacker: Attacker) -> None:
    attacker.host.restrictions()
    template = attacker.host._lanes[True].template
    assert template is not None
    read = 0
    for process in _descendants(template._process.pid):
        try:
            maps = Path(f"/proc/{process}/smaps").read_text()
        except PermissionError:
            pytest.skip("only root may look into a process that is not dumpable")
        for mapping in re.split(r"^(?=[0-9a-f]+-)", maps, flags=re.MULTILINE)[1:]:
            sizes = dict(re.findall(r"^(\w+): +(\d+) kB", mapping, re.MULTILINE))
            inode = mapping.split(maxsplit=5)[4]
            # Variables of libraries lie where the file was, each page of them a copy.
            assert inode == "0" or int(sizes["Anonymous"]) + int(sizes["Swap"]) == int(sizes["Size"]), mapping
            assert inode == "0" or mapping.split()[1] == "rw-p", mapping
            read += 1
    assert read > 50


def test_what_answers_an_app_finds_no_trace_of_private_calls(attacker: Attacker) -> None:
    """It may walk up to the frames of the process that it was copied from, where calls are counted."""
    before = attacker.ask(Handler.ON_REQUEST, {"attempt": "frames"}).work["came"]
    for _ in range(3):
        attacker.attempt("identity")
    after = attacker.ask(Handler.ON_REQUEST, {"attempt": "frames"}).work["came"]
    assert after == [number + 1 for number in before] != []


def test_an_app_is_answered_while_a_private_call_runs(attacker: Attacker) -> None:
    entered, let_go = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def get(self, key: str) -> bytes | None:
            entered.set()
            let_go.wait(60.0)
            return None

    slow = Attacker(attacker.host)
    slow.store = Slow()
    read = frame({"read": "local", "key": "x"}) + frame({"done": GOOD})
    with ThreadPoolExecutor(2) as pool:
        private = pool.submit(slow.attempt, "raw", bytes=read)
        assert entered.wait(60.0)
        try:
            answered = pool.submit(attacker.ask, Handler.ON_REQUEST, {"attempt": "identity"}).result(30.0)
            assert not private.done()
        finally:
            let_go.set()
    assert answered.work["came"]


# The end


_HOST = """
import sys, time
from pathlib import Path
from device_runtime.isolated import IsolatedHost, ServiceCode
host = IsolatedHost(ServiceCode.load(Path(sys.argv[1])))
host.restrictions()
print(host._lanes[True].template._process.pid, flush=True)
time.sleep(600)
"""


def _descendants(process: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(status[1]) == process and status[0] != "Z":
                    found += [int(entry.name), *_descendants(int(entry.name))]
    return found


def _gone(processes: list[int]) -> bool:
    import time

    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        alive = []
        for process in processes:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    alive.append(process)
        if not alive:
            return True
        time.sleep(0.02)
    return False


def test_when_the_runtime_is_killed_nothing_stays_behind(attacker: Attacker) -> None:
    service = Path(__file__).parent / "services" / "hostile.py"
    with subprocess.Popen(
        [sys.executable, "-c", _HOST, str(service)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as runtime:  # fmt: skip
        assert runtime.stdout is not None
        template = int(runtime.stdout.readline())
        made = [template, *_descendants(template)]
        runtime.send_signal(signal.SIGKILL)
        runtime.wait()
    assert len(made) >= 2
    assert _gone(made)


def test_closing_ends_all_processes_and_a_later_call_starts_them_again(start: Callable[..., IsolatedHost]) -> None:
    attacker = Attacker(start("hostile.py"))
    attacker.attempt("identity")
    made_first = attacker.host._lanes[True].template
    assert made_first is not None
    template = made_first._process.pid
    made = [template, *_descendants(template)]
    attacker.host.close()
    assert _gone(made)
    assert attacker.attempt("identity") is not None


def test_a_template_that_was_killed_is_started_again(start: Callable[..., IsolatedHost]) -> None:
    attacker = Attacker(start("hostile.py"))
    attacker.attempt("identity")
    # The next call's process has reported its restrictions, and dies with its template.
    attacker.host.restrictions()
    made_first = attacker.host._lanes[True].template
    assert made_first is not None
    made_first._process.kill()
    made_first._process.wait()
    assert attacker.attempt("identity") is not None
