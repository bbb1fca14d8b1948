"""What a host keeps of a service's answers, what it says of failures, and where it does not start one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from device_runtime.isolated import (
    Asked,
    CallLimits,
    HandlerFailed,
    IsolatedHost,
    MemoryStore,
    Reason,
    ServiceCode,
    process,
)
from odp.errors import ConfigurationError, DataError, StateError
from odp.isolated import Declined, Handler
from odp.isolated.walls import PROMISES, RESTRICTIONS

from .conftest import NOW, SERVICES, Attacker

ROWS = {"song/a": b"Anna", "song/b": b"Bob", "other": b"x"}


@pytest.fixture(scope="session")
def music(start: Callable[..., IsolatedHost]) -> IsolatedHost:
    return start("honest.py")


def test_a_service_sees_what_it_may_and_what_it_writes_is_kept(music: IsolatedHost) -> None:
    store = MemoryStore()
    assert music.download(store, "v1", ROWS, now=NOW) == 2
    assert store.downloaded_keys() == ["song/a", "song/b"]
    assert music.event(store, "played", {"song": "a"}, now=NOW) == 1
    assert [(event.type, event.data, event.time) for event in store.events()] == [("played", {"song": "a"}, NOW)]
    assert store.get("last") == b"a"
    asked = music.request(store, "player", {"kind": "songs"}, now=NOW)
    assert isinstance(asked, Asked)
    assert asked.work == {"count": 2}
    result = music.execute(store, asked, now=NOW)
    (request,) = store.requests()
    assert (request.app, request.asked, request.rows) == ("player", {"kind": "songs"}, ({"song": "b"},))
    assert store.get("seen") == b"1"
    assert music.render(store, result, now=NOW) == "<p>Bob</p>"
    (example,) = music.training_examples(store, population="p", task="t", now=NOW)
    assert example.columns == {"song": "a", "value": 1.0}
    assert music.standing() == []


_COMPUTING = """
import decimal, fractions, hashlib, json, logging, random, secrets, statistics, threading, time, uuid
import numpy as np
import numpy.linalg
import numpy.random
from odp.isolated import Accepted, IsolatedService

class Computing(IsolatedService):
    def on_request(self, request, stores):
        lock, started = threading.Lock(), time.perf_counter()
        lock.acquire()
        grown = []
        for number in range(1_000_000):
            grown.append(number)
        time.sleep(0.01)
        log = logging.LogRecord("x", 20, "", 0, "said", (), None)
        matrix = np.random.default_rng().normal(size=(300, 300))
        return Accepted({
            "drawn": [len(secrets.token_bytes(8)), uuid.uuid4().version, 0 <= random.random() < 1],
            "inverse": float(np.abs(np.linalg.inv(matrix) @ matrix - np.eye(300)).max()) < 1e-6,
            "memory": [float(np.zeros(2**21).sum()), sum(grown)],
            "waited": [lock.acquire(timeout=0.01), time.perf_counter() - started > 0.02],
            "times": [time.process_time() > 0, time.time() > 0, time.get_clock_info("process_time").resolution > 0],
            "rest": [str(decimal.Decimal(1) / 4), str(fractions.Fraction(1, 3)), log.getMessage(),
                     hashlib.sha256(b"x").hexdigest()[:4], statistics.mean([1, 3])],
        })
"""


def test_what_computing_needs_of_the_kernel_is_there(start: Callable[..., IsolatedHost], tmp_path: Path) -> None:
    path = tmp_path / "computing.py"
    path.write_text(_COMPUTING)
    answer = start(path).request(MemoryStore(), "app", {}, now=NOW)
    assert isinstance(answer, Asked)
    assert answer.work == {
        "drawn": [8, 4, True], "inverse": True, "memory": [0.0, 499_999_500_000], "waited": [False, True],
        "times": [True, True, True], "rest": ["0.25", "1/3", "said", "2d71", 2],
    }  # fmt: skip


def test_a_declined_request_is_not_kept(music: IsolatedHost) -> None:
    store = MemoryStore()
    answer = music.request(store, "player", {"kind": "films"}, now=NOW)
    assert answer == Declined("Expected kind to be songs or albums")
    assert not store.requests()


def test_what_a_handler_returns_shows_in_no_repr(music: IsolatedHost) -> None:
    store = MemoryStore()
    store.add_event("played", {"song": "secret"}, time=NOW)
    assert "secret" not in repr(music.training_examples(store, population="p", task="t", now=NOW))


class Full(MemoryStore):
    """A store that takes events, and no local data."""

    def change(self, changes: object, *, time: float) -> None:
        raise DataError("Expected the local data to be smaller")


def test_where_one_part_cannot_be_stored_nothing_is(music: IsolatedHost) -> None:
    store = Full()
    with pytest.raises(HandlerFailed) as failed:
        music.event(store, "played", {"song": "a"}, now=NOW)
    assert failed.value.reason is Reason.NOT_STORED
    assert not store.events()


def test_a_store_that_breaks_is_no_failure_of_the_service(music: IsolatedHost) -> None:
    class Broken(MemoryStore):
        def events(self, **_: object) -> list[object]:  # type: ignore[override]
            raise StateError("device store is damaged")

    with pytest.raises(StateError, match="damaged"):
        music.training_examples(Broken(), population="p", task="t", now=NOW)
    assert music.request(MemoryStore(), "player", {"kind": "songs"}, now=NOW)


def test_after_failures_in_a_row_a_handler_rests_and_no_other_does(start: Callable[..., IsolatedHost]) -> None:
    said: list[str] = []
    now = 0.0
    limits = CallLimits(seconds=60.0, failures=2)
    attacker = Attacker(start("hostile.py", limits=limits, say=said.append, clock=lambda: now))

    def reason() -> Reason:
        with pytest.raises(HandlerFailed) as failed:
            attacker.attempt("raise")
        return failed.value.reason

    assert [reason() for _ in range(3)] == [Reason.RAISED, Reason.RAISED, Reason.RESTING]
    (line,) = said
    assert "on_execute of the service failed 2 times in a row" in line
    assert "60 s" in line
    (standing,) = attacker.host.standing()
    assert (standing.handler, standing.failures, standing.rests_seconds) == (Handler.ON_EXECUTE, 2, 60.0)
    # The app is answered as before, or it would learn of the failure.
    assert attacker.ask(Handler.ON_REQUEST, {})
    now = 61.0
    assert reason() is Reason.RAISED
    assert "120 s" in said[-1]
    now = 1000.0
    assert attacker.attempt("identity") is not None
    assert attacker.host.standing() == []


def test_a_module_that_does_not_load_is_named(start: Callable[..., IsolatedHost], tmp_path: Path) -> None:
    for name, text in (("raising", "1 // 0"), ("empty", ""), ("broken", "def"), ("missing", "import scipy")):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        traces: list[str] = []
        host = start(path, trace=traces.append)
        with pytest.raises(HandlerFailed) as failed:
            host.request(MemoryStore(), "app", {}, now=NOW)
        assert failed.value.reason is Reason.NOT_LOADED
        assert len(traces) == 1


def test_a_package_imports_its_own_modules(start: Callable[..., IsolatedHost], tmp_path: Path) -> None:
    package = tmp_path / "packed"
    (package / "inner").mkdir(parents=True)
    text = (SERVICES / "honest.py").read_text()
    (package / "__init__.py").write_text(f"{text}\n\nfrom packed.inner.words import WORDS\n\nassert WORDS\n")
    (package / "inner" / "__init__.py").write_text("")
    (package / "inner" / "words.py").write_text("WORDS = ['a']\n")
    assert start(package).request(MemoryStore(), "app", {"kind": "songs"}, now=NOW)


def test_a_trace_is_told_to_nobody_unless_asked_for(start: Callable[..., IsolatedHost]) -> None:
    traces: list[str] = []
    with pytest.raises(HandlerFailed) as failed:
        Attacker(start("hostile.py", trace=traces.append)).attempt("raise")
    assert "ZeroDivisionError" in traces[0]
    assert "ZeroDivision" not in str(failed.value)


# Where walls are missing

_REFUSING = """
import sys
sys.path.append({root!r})
from odp._system.sandbox import kernel
kernel.unshare = lambda names: False
kernel.filter_system_calls = lambda allowed: False
import runpy
runpy.run_path({program!r}, run_name="__main__")
"""


WITHOUT_WALLS = ("no network", "no files", "no other processes", "no traces of other calls", "no count of other calls")


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kernel that has neither namespaces nor seccomp."""
    program = Path(process._PROGRAM)
    script = tmp_path / "refusing.py"
    script.write_text(_REFUSING.format(root=str(program.parents[2]), program=str(program)))
    monkeypatch.setattr(process, "_PROGRAM", script)


def test_where_a_promise_cannot_be_kept_a_service_is_given_nothing(
    refusing: None, start: Callable[..., IsolatedHost]
) -> None:
    said: list[str] = []
    attacker = Attacker(start("hostile.py", say=said.append))
    missing = ", ".join(WITHOUT_WALLS)
    with pytest.raises(StateError, match=rf"does not enforce {missing} .* got no data"):
        attacker.attempt("identity")
    assert said == [f"this machine does not enforce for services: {missing}; see `odp device doctor`"]


_CURIOUS = """
from pathlib import Path
from odp.isolated import Accepted, IsolatedService

class Curious(IsolatedService):
    def on_request(self, request, stores):
        try:
            return Accepted({"read": Path("/etc/passwd").read_text()})
        except OSError as error:
            return Accepted({"errno": error.errno})
"""


def test_a_person_may_do_without_and_what_is_left_holds(
    refusing: None, start: Callable[..., IsolatedHost], tmp_path: Path
) -> None:
    path = tmp_path / "curious.py"
    path.write_text(_CURIOUS)
    host = start(path, accept=WITHOUT_WALLS)
    held = host.restrictions()
    assert not {"seccomp", "namespace-network", "namespace-process"} & set(held)
    answer = host.request(MemoryStore(), "app", {}, now=NOW)
    assert isinstance(answer, Asked)
    assert set(answer.work) == ({"errno"} if "landlock-no-files" in held else {"read"})


def test_only_promises_can_be_done_without() -> None:
    with pytest.raises(ConfigurationError, match="no network, no files"):
        IsolatedHost(ServiceCode.load(SERVICES / "honest.py"), accept=["network"])


def test_the_doctor_names_what_a_machine_does_not_enforce(refusing: None, tmp_path: Path) -> None:
    from device_runtime import SimulatedSensors, Store, store_path
    from device_runtime.host.doctor import examine

    path = store_path(tmp_path, 0)
    path.parent.mkdir(parents=True)
    Store.open_or_create(path).close()
    found = examine(SimulatedSensors(charge=None), folder=tmp_path)
    assert found.not_enforced == WITHOUT_WALLS
    assert {"seccomp", "namespace-network"} <= set(found.refused)
    assert sorted((*found.held, *found.refused)) == sorted(RESTRICTIONS)
    assert sorted((*found.enforced, *found.not_enforced)) == sorted(PROMISES)
    assert "AES-256" in found.store
    assert "store.key" in found.store
    assert (found.sensors["charging"], found.sensors["battery"]) == ("", "simulated: this sensor is broken")
    assert json.loads(json.dumps(found.as_json()))["services"]["not_enforced"] == list(found.not_enforced)


def test_where_no_process_can_be_started_the_doctor_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from device_runtime import SimulatedSensors
    from device_runtime.host.doctor import examine

    monkeypatch.setattr(process, "_PROGRAM", tmp_path / "missing.py")
    found = examine(SimulatedSensors(), folder=tmp_path)
    assert found.not_enforced == tuple(PROMISES)
    assert "could not be started" in found.problem


# Code


def test_links_and_files_that_are_no_modules_are_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    link = tmp_path / "link.py"
    link.symlink_to(secret)
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "json.py").write_text("")
    (tmp_path / "latin.py").write_bytes(b"# \xff")
    (tmp_path / "long.py").write_bytes(b"#" * 2**22)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").symlink_to(secret)
    for name in ("link.py", "missing.py", "folder.py", "json.py", "latin.py", "long.py", "package"):
        with pytest.raises(ConfigurationError):
            ServiceCode.load(tmp_path / name)


def test_imports_are_found_and_only_known_ones_are_loaded() -> None:
    text = (
        "import json, os.path as p\nimport scipy\nfrom concurrent import futures\n"
        "def f():\n    from numpy import (\n        linalg,\n    )\n    import antigravity\nfrom . import x\n"
        "from unittest import __main__\n"
    )
    found = ServiceCode("service", None, {"service": (text, False)}).imports()
    assert {"json", "os.path", "concurrent", "concurrent.futures", "numpy", "numpy.linalg"} <= set(found)
    assert "unittest.__main__" not in found
    assert not {"scipy", "antigravity"} & {name.partition(".")[0] for name in found}


def test_what_is_no_json_is_refused_before_the_service_is_asked(music: IsolatedHost) -> None:
    for asked in ({"x": float("nan")}, {"x": b"secret"}, {"x": "y" * 2**25}):
        with pytest.raises(DataError, match="to be JSON values") as refused:
            music.request(MemoryStore(), "player", asked, now=NOW)  # type: ignore[arg-type]
        assert "secret" not in str(refused.value)
    assert Handler.ON_REQUEST not in {standing.handler for standing in music.standing()}
