"""Hosts of an honest and of a hostile service, as real processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from device_runtime.isolated import Asked, CallLimits, IsolatedHost, MemoryStore, Result, ServiceCode
from odp.isolated import Handler

SERVICES = Path(__file__).resolve().parent / "services"
NOW = 1_000_000.0


class Attacker:
    """A host of the hostile service, and a store with something private in it."""

    def __init__(self, host: IsolatedHost) -> None:
        self.host = host
        self.store = MemoryStore()
        self.store.add_request("app", {"private": "asked"}, time=1.0)
        self.store.add_event("private", {"private": "event"}, time=1.0)
        self.store.change({"private": b"local"}, time=1.0)
        self.store.download("v0", {"public": b"row"}, time=1.0)

    def attempt(self, name: str, **work: object) -> Any:
        """What came of an attempt, made by on_execute."""
        return self.ask(Handler.ON_EXECUTE, {"attempt": name, **work})

    def ask(self, handler: Handler, work: dict[str, object]) -> Any:
        """Has one handler do ``work``; what it answers."""
        host, store = self.host, self.store
        if handler is Handler.ON_REQUEST:
            return host.request(store, "app", work, now=NOW)
        if handler is Handler.ON_EXECUTE:
            asked = Asked(store.add_request("app", {}, time=NOW), "app", work)
            return host.execute(store, asked, now=NOW).result.get("came")
        if handler is Handler.ON_RENDER:
            return host.render(store, Result(1, work), now=NOW)
        if handler is Handler.ON_EVENT:
            return host.event(store, "x", work, now=NOW)
        if handler is Handler.ON_DOWNLOAD:
            return host.download(store, "v1", {"do": json.dumps(work).encode()}, now=NOW)
        return host.training_examples(store, population="p", task=json.dumps(work), now=NOW)

    def contents(self) -> object:
        """All that the store holds, but for requests that wait for their answer."""
        answered = [row for row in self.store.requests() if row.rows is not None]
        local = {key: self.store.get(key) for key in self.store.local_keys()}
        downloads = {key: self.store.downloaded(key) for key in self.store.downloaded_keys()}
        return self.store.events(), answered, local, downloads


@pytest.fixture(scope="session")
def start() -> Iterator[Callable[..., IsolatedHost]]:
    """Starts hosts that are closed when the tests end."""
    if sys.platform != "linux":
        pytest.skip("services need Linux")
    with ExitStack() as stack:

        def started(service: str | Path, **changes: Any) -> IsolatedHost:
            path = SERVICES / service if isinstance(service, str) else service
            given = {"limits": CallLimits(seconds=60.0, failures=1000), **changes}
            return stack.enter_context(IsolatedHost(ServiceCode.load(path), **given))

        yield started


@pytest.fixture(scope="session")
def hostile_host(start: Callable[..., IsolatedHost]) -> IsolatedHost:
    """One host for all attempts."""
    return start("hostile.py", limits=CallLimits(seconds=60.0, failures=1000, memory_bytes=128 * 2**20))


@pytest.fixture
def attacker(hostile_host: IsolatedHost) -> Attacker:
    """The hostile service with a fresh store."""
    return Attacker(hostile_host)


@pytest.fixture(scope="session")
def hasty_host(start: Callable[..., IsolatedHost]) -> IsolatedHost:
    """One host with a short deadline."""
    return start("hostile.py", limits=CallLimits(seconds=3.0, processor_seconds=1, failures=1000))


@pytest.fixture
def hasty(hasty_host: IsolatedHost) -> Attacker:
    """The hostile service under a short deadline."""
    return Attacker(hasty_host)


@pytest.fixture(scope="session")
def frugal_host(start: Callable[..., IsolatedHost]) -> IsolatedHost:
    """One host with tight limits but for time: a process of a busy machine starts late."""
    return start("hostile.py", limits=CallLimits(seconds=60.0, failures=1000, output_bytes=2**16, reads=3))


@pytest.fixture
def frugal(frugal_host: IsolatedHost) -> Attacker:
    """The hostile service under tight limits but for time."""
    return Attacker(frugal_host)
