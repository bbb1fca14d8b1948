"""The hosts of a tree, with enclaves in memory: whose leaf it is, and what waits for a leaf that is away."""

from __future__ import annotations

import contextlib
import io
import itertools
from types import SimpleNamespace

import pytest
from trees import StatisticsTree

from odp._system.files.state_folder import StateFolder
from odp.crypto import domains
from odp.errors import Busy, ConfigurationError, PrivacyError, ServiceUnavailable, StateError
from odp.evaluation.noise import NoNoise
from odp.transport.logs import Log
from odp.trust.enclave.platform import EmulatedPlatform
from odp.v1 import aggregator_pb2, leaf_pb2
from trusted_aggregator.boundary.interface import Refused, SealedContribution
from trusted_aggregator.host.leaf_program import LeafParts
from trusted_aggregator.host.leaves import TreeLeaves
from trusted_aggregator.host.sqlite_storage import SqliteStorage
from trusted_aggregator.modes.tree.host_half import LeafHost

_NUMBERS = itertools.count()


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Direct:
    """A leaf's control listener without a network; ``away`` is why nobody answers."""

    def __init__(self, parts):
        self.parts_, self.away, self.address = parts, "", "leaf:1"

    def _ask(self):
        if self.away:
            raise ServiceUnavailable(self.away)

    def greet(self, nonce):
        self._ask()
        return self.parts_.greet(nonce)

    def open_part(self, given):
        self._ask()
        self.parts_.open(given)

    def parts(self, root, leaf, kept):
        self._ask()
        request = leaf_pb2.ListPartsRequest(
            root=root,
            leaf=leaf,
            kept=[aggregator_pb2.GetRoundRequest(task_sha256=task, round=round) for task, round in kept],
        )
        reply = self.parts_.parts(request)
        return {(part.task_sha256, part.round): part.contributions for part in reply.parts}

    def close_part(self, key):
        self._ask()
        return (piece.data for piece in self.parts_.close(*key))


class Hosts:
    """A root's host and its leaves', with storage on disk."""

    def __init__(self, folder, stack):
        platform = EmulatedPlatform.open(folder / "platform")
        self.tree = StatisticsTree(platform, f"hosts-{next(_NUMBERS)}", minimum=3, noise=NoNoise())
        self.log = io.StringIO()
        self.stack, self.folder = stack, folder
        self.clients, self.takers = [], []
        for number, leaf in enumerate(self.tree.leaves):
            state = stack.enter_context(StateFolder.open(folder / f"leaf-{number}", "leaf"))
            storage = SqliteStorage(state)
            stack.callback(storage.close)
            core = _leaf_calls(leaf)
            parts = LeafParts(core, storage, state, Log("leaf", stream=self.log))
            self.clients.append(Direct(parts))
            self.takers.append(SimpleNamespace(host=LeafHost(core, parts), storage=storage, core=core, parts=parts))
        state = stack.enter_context(StateFolder.open(folder / "root", "aggregator"))
        self.storage = SqliteStorage(state)
        stack.callback(self.storage.close)
        self.clock = Clock()
        self.failures = []
        self.leaves = self.hosted(b"r" * 32)
        self.key = (self.tree.task_sha256, 0)

    def hosted(self, root):
        return TreeLeaves(
            _Calls(lambda: self.tree.core.calls), self.storage, self.clients, root=root,
            log=Log("aggregator", stream=self.log), failed=self.failures.append, grace_seconds=60.0,
            monotonic=self.clock,
        )  # fmt: skip

    def open(self):
        self.tree.open()
        self.leaves.open(self.key)

    def fill(self, devices):
        for device in devices:
            taker = self.takers[self.tree.leaf_of(device)]
            request = aggregator_pb2.SubmitRequest(
                task_sha256=self.key[0], round=0, sealed_contribution=self.tree.sealed(device)
            )
            contribution = taker.host.contribution(request)
            assert isinstance(contribution, SealedContribution)
            assert taker.core.submit_batch([contribution]) == [None]
            taker.storage.add([contribution])

    def close(self):
        self.leaves.close(self.key, *self.tree.order(0, domains.CLOSE))


class _Calls:
    """The calls of an enclave that may start again."""

    def __init__(self, core):
        self._core = core

    def __getattr__(self, name):
        return getattr(self._core(), name)


def _leaf_calls(leaf):
    calls = _Calls(lambda: leaf.core.calls)
    calls.evidence = lambda request: leaf.greet(request.nonce).evidence
    return calls


@pytest.fixture
def hosts(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Hosts(tmp_path, stack)


def test_a_round_goes_through_the_hosts(hosts):
    hosts.open()
    hosts.fill(range(12))
    assert hosts.leaves.contributions(hosts.key) == 12
    hosts.close()
    assert hosts.tree.charge().contributions == 12
    stored = list(hosts.storage.contributions(*hosts.key))
    hosts.tree.settle(hosts.tree.charge().writes)
    hosts.tree.restart(rows={hosts.key: stored})
    hosts.tree.finish()
    hosts.leaves.forget(hosts.key)
    hosts.leaves.sync()
    assert not any(list(taker.storage.contributions(*hosts.key)) for taker in hosts.takers), "erased at the leaves"


def test_devices_come_again_where_a_leaf_has_no_round_yet(hosts):
    hosts.tree.open()
    request = aggregator_pb2.SubmitRequest(task_sha256=hosts.key[0], round=0, sealed_contribution=b"x")
    with pytest.raises(Busy, match="not open at this leaf yet"):
        hosts.takers[0].host.contribution(request)
    hosts.leaves.sync()
    assert isinstance(hosts.takers[0].host.contribution(request), SealedContribution)
    masked = aggregator_pb2.SubmitRequest(task_sha256=hosts.key[0], round=0, masked_vector=b"x")
    assert isinstance(hosts.takers[0].host.contribution(masked), Refused)


def test_a_leaf_that_starts_again_gets_its_rounds_and_takes_back_what_is_stored(hosts):
    hosts.open()
    hosts.fill(range(12))
    hosts.tree.leaves[0].restart()
    hosts.takers[0].parts._held.clear()  # its host is a new process, too
    hosts.leaves.sync()
    assert hosts.leaves.contributions(hosts.key) == 12
    hosts.close()
    assert hosts.tree.charge().contributions == 12


def test_a_round_waits_for_a_leaf_that_is_away_and_closes_without_it_after_its_time(hosts):
    hosts.open()
    hosts.fill(range(12))
    hosts.clients[1].away = "nobody answers at leaf 1"
    with pytest.raises(Busy, match=r"waits 60 s more for leaf 1 .*nobody answers"):
        hosts.close()
    hosts.clock.now = 61.0
    hosts.close()
    mine = sum(hosts.tree.leaf_of(device) == 0 for device in range(12))
    assert hosts.tree.charge().contributions == mine
    assert "leaf_left_out" in hosts.log.getvalue()


def test_a_round_that_needs_the_leaf_waits_for_as_long_as_it_takes(hosts):
    hosts.open()
    away = [device for device in range(60) if hosts.tree.leaf_of(device) == 1][:5]
    hosts.fill(away)
    assert hosts.leaves.contributions(hosts.key) == 5
    hosts.clients[1].away = "nobody answers"
    for now in (0.0, 1000.0):
        hosts.clock.now = now
        with pytest.raises(Busy, match=r"needs at least 3.*waits for leaf 1"):
            hosts.close()
    hosts.clients[1].away = ""
    hosts.close()
    assert hosts.tree.charge().contributions == 5


def test_below_the_minimum_no_leaf_closes(hosts):
    hosts.open()
    hosts.fill([0, 1])
    with pytest.raises(PrivacyError, match="needs at least 3"):
        hosts.close()
    hosts.fill(range(2, 6))
    hosts.close()
    assert hosts.tree.charge().contributions == 6


def test_a_leaf_belongs_to_one_root_and_has_one_number(hosts):
    hosts.open()
    hosts.leaves.sync()
    hosts.fill(range(6))
    other = hosts.hosted(b"s" * 32)
    other.sync()
    assert "give each root leaves of its own" in hosts.log.getvalue()
    assert hosts.leaves.contributions(hosts.key) == 6, "nothing was erased"
    hosts.clients.reverse()
    swapped = hosts.hosted(b"r" * 32)
    swapped.sync()
    assert "and not leaf 1" in hosts.log.getvalue()
    with pytest.raises(ConfigurationError, match="32 bytes"):
        hosts.clients[0].parts(b"", 0, [])


def test_a_disk_that_takes_no_sum_stops_the_root(hosts, monkeypatch):
    hosts.open()
    hosts.fill(range(6))

    def full(contributions):
        raise StateError("the disk is full")

    monkeypatch.setattr(hosts.storage, "add", full)
    with pytest.raises((StateError, Busy)):
        hosts.close()
    assert hosts.failures
