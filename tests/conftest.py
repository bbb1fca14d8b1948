"""Fixtures that several test packages use."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import sqlalchemy
import typer.main
import typer.testing
from bytecode import compile_tests
from program_template import Template

from odp import refusing
from odp.operations.local import log_setup
from odp.privacy import calibration, composition
from odp.transport import guard

# A busy machine makes an example slow, and that is no failure.
hypothesis.settings.register_profile("odp", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("odp")

# Tests and what they import stay until the end: looking for garbage among them is a fifth of what a worker collects.
gc.disable()


#: Folders whose tests run the whole platform, programs of other languages, or simulations as long as a real one.
_LONG = frozenset({"e2e", "faults", "benchmarks", "second_language", "reproductions", "simulation"})


def pytest_configure(config: pytest.Config) -> None:
    """Before workers start, what each of them would compile is compiled."""
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        compile_tests(config, Path(__file__).resolve().parent, processes=os.cpu_count() or 1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start programs are ``slow``, and their files come first.

    `make test` leaves them out, but for those with the mark ``representative``: one for each party and mode. At the end
    of all tests, the workers share small files and finish together.
    """
    tests = Path(__file__).resolve().parent
    long = [
        item
        for item in items
        if item.get_closest_marker("processes") or _LONG & set(item.path.relative_to(tests).parts)
    ]
    for item in long:
        if item.get_closest_marker("representative") is None:
            item.add_marker(pytest.mark.slow)
    files = {item.path for item in long}
    items.sort(key=lambda item: item.path not in files)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Garbage is collected again, as seldom as in programs, and never looked for among the 14,000 tests."""
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real data sets, one sub-folder each; the test is skipped where there is none.

    The folder is the one that the variable ODP_SHARED_DATA names, or ``shared/data`` beside the repository.
    """
    given = os.environ.get("ODP_SHARED_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs real data sets: set ODP_SHARED_DATA to a folder that holds ml-1m, jester-1, gowalla, ...")
    return folder


@contextlib.contextmanager
def _coarse_grids() -> Iterator[None]:
    """Of claims and of searches; what a search has found is kept by the events alone, whatever its grid."""
    coarse = 10 * composition.COARSE_INTERVAL
    calibration._sampled.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(composition, "INTERVAL", coarse)
        patch.setattr(composition, "COARSE_INTERVAL", coarse)
        yield
    calibration._sampled.cache_clear()


@pytest.fixture
def coarse_composition() -> Iterator[None]:
    """Composes sampled rounds, and searches their noise, at a coarse discretisation: for tests of what is charged.

    It takes a hundredth of the time of a claim, and a tenth of that of a search. Every grid is pessimistic, and both
    have the same one here, so that a budget is spent as it is on the fine ones. ``tests/privacy`` has these, and
    compares them with the library's.
    """
    with _coarse_grids():
        yield


@pytest.fixture(scope="module")
def coarse_composition_of_module() -> Iterator[None]:
    """``coarse_composition`` for fixtures that a module shares."""
    with _coarse_grids():
        yield


@pytest.fixture(scope="session", autouse=True)
def this_installation_is_measured_once_for_its_reference_values() -> Iterator[None]:
    """It takes half a second of hashing, for each of hundreds of sets of services, and nothing changes meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_setup, "measurements", functools.cache(log_setup.measurements))
        yield


@pytest.fixture(scope="session", autouse=True)
def the_tree_of_commands_is_built_once() -> Iterator[None]:
    """It takes .07 s of processor, for each command that a test runs in this process, and is the same each time."""
    build = functools.cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", build)
        patch.setattr(typer.testing, "_get_command", build)
        yield


class _CompiledStatements:
    """Compiled statements by the class of their dialect, where SQLAlchemy's own cache has them by the dialect itself.

    Each store has an engine with a dialect of its own. All dialects of a class here have the same driver and the same
    options, so they compile alike.
    """

    def __init__(self) -> None:
        self._compiled: Any = sqlalchemy.util.LRUCache(2000)

    def get(self, key: tuple[Any, ...]) -> Any:
        dialect, *rest = key
        return self._compiled.get((type(dialect), *rest))

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        dialect, *rest = key
        self._compiled[type(dialect), *rest] = compiled


@pytest.fixture(scope="session", autouse=True)
def statements_for_sqlite_are_compiled_once() -> Iterator[None]:
    """It takes a sixth of the tests of a server, each of which opens stores of its own; programs have one each."""
    create, compiled = sqlalchemy.create_engine, _CompiledStatements()

    def create_engine(url: sqlalchemy.URL | str, **options: Any) -> sqlalchemy.Engine:
        if sqlalchemy.make_url(url).get_backend_name() == "sqlite":
            options["execution_options"] = {"compiled_cache": compiled, **options.get("execution_options", {})}
        return create(url, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlalchemy, "create_engine", create_engine)
        yield


#: How long a listener's guard of the product pauses: while connections are new or suspect, and otherwise.
_PAUSES = {"_SOON": guard._SOON, "_LATER": guard._LATER}


@pytest.fixture(scope="session", autouse=True)
def guards_of_listeners_look_seldom() -> Iterator[None]:
    """Most listeners have no attacker in their tests: looking as often as for one takes a fifth of the processor.

    Programs that tests start look as often as ever, and so do listeners of tests with ``guards_as_delivered``.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in _PAUSES.items():
            patch.setattr(guard, name, 20.0 * seconds)
        yield


@pytest.fixture(scope="module")
def guards_as_delivered() -> Iterator[None]:
    """The guards of listeners look as often as in programs: for tests of these guards, and of attacks on listeners."""
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in _PAUSES.items():
            patch.setattr(guard, name, seconds)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_keyring_of_the_person_who_runs_the_tests() -> Iterator[None]:
    """Stores that tests make, also in programs that they start, keep their keys in files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
        patch.delenv("ODP_DEVICE_KEY_FILE", raising=False)
        yield


#: Forks the programs that tests of this process start.
_TEMPLATE = pytest.StashKey[Template]()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[object]:
    """Programs are forked from one process per worker: see ``program_template``."""
    if sys.platform != "linux":
        return (yield)
    with Template.started() as template, template.forking():
        session.stash[_TEMPLATE] = template
        return (yield)


@pytest.fixture
def template(request: pytest.FixtureRequest) -> Iterator[Template]:
    """What forks the programs of this process; a test may turn it off and on."""
    template = request.session.stash[_TEMPLATE]
    before = template.forks
    yield template
    template.forks = before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Programs of a test with the mark ``afresh`` start as users start them."""
    if (template := item.session.stash.get(_TEMPLATE, None)) is not None:
        template.forks = item.get_closest_marker("afresh") is None
    return (yield)


@pytest.fixture(autouse=True)
def _errors_that_no_check_foresaw(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test in which an error of this program was taken for a refusal of what it opened.

    A test with the mark ``unforeseen`` plants such errors.
    """
    raised: list[str] = []

    class Recorded(refusing.UnforeseenRefusal):
        def __init__(self, message: str) -> None:
            raised.append(message)
            super().__init__(message)

    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("unforeseen") is None:
            patch.setattr(refusing, "UnforeseenRefusal", Recorded)
        yield
    assert not raised, raised
