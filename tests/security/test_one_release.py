"""One charge, one release: a host that has a second one signed, of another sum under the same set.

The first attack: take a signed release, drop what the enclave asked to store, start it from the state of before, and
hand in another sum. The difference of two releases of one round has no noise in it. Now a signature leaves only once
its hash is in force, so that the state of before is of no use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from odp.crypto import domains
from odp.crypto.secure_aggregation.masked import mask, set_sha256
from odp.errors import OdpError, PrivacyError, StateError
from odp.v1 import common_pb2
from trusted_aggregator.boundary.interface import HostSum
from trusted_aggregator.state.records import noise_key, release_key

Make = Callable[..., Any]
BINS, CLIENTS = 40, 30


class Masked:
    """A charged round in which the host holds the sum: ``sums`` are two that it may hand in under the charged set."""

    def __init__(self, make_statistics: Make, aggregation: str) -> None:
        self.world = make_statistics(BINS, aggregation=aggregation, minimum=3 if aggregation == "masked" else 20)
        self.world.open()
        self.sums = self._masked() if aggregation == "masked" else self._secagg()
        self.before = dict(self.world.records)
        self.world.settle(self.world.charge().writes)
        self.charged = dict(self.world.records)
        self.seen: list[bytes] = [b""]
        self.signed: set[bytes] = set()

    def _masked(self) -> list[HostSum]:
        world, total, digests = self.world, np.zeros(BINS, dtype=np.uint32), []
        for device in range(3):
            halves = mask(world.payload(device), info=domains.masked_vector_info(world.task_sha256, 0))
            sealed, digest = world.sealed(device, payload=halves.secret), halves.secret[32:]
            assert world.core.submit(world.task_sha256, 0, sealed, host_sha256=digest) is None
            world.rows.setdefault((world.task_sha256, 0), []).append(sealed + digest)
            total += np.frombuffer(halves.vector, "<u4")
            digests.append(digest)
        name = set_sha256(world.task_sha256, 0, sorted(digests))
        return [HostSum((total + change).astype("<u4").tobytes(), name) for change in (0, 7)]

    def _secagg(self) -> list[HostSum]:
        name = hashlib.sha256(b"survivors").digest()
        self.world.core.announce(self.world.task_sha256, 0, CLIENTS, name)
        return [HostSum(np.full(BINS, number, "<i8").tobytes(), name) for number in (3, 4)]

    # What a host can try

    def seal(self, which: int, *, store: bool) -> None:
        """Has a release made of one of the sums; the host keeps every byte that it ever saw."""
        world = self.world
        order = world.order(0, domains.CLOSE)[0]
        noise = world.records.get(noise_key(world.task_sha256, 0))
        writes = world.core.seal_release(order, noise=noise, host_sum=self.sums[which])
        self.seen += [one.data for one in writes if one.key == release_key(world.task_sha256, 0) and one.data]
        if store:
            world.persist(writes)

    def take(self) -> None:
        """Asks for a signature with every sealed release that it ever saw."""
        for stored in self.seen:
            try:
                self.signed.add(self.world.core.release(self.world.order(0, domains.CLOSE)[0], stored=stored))
            except OdpError:
                continue

    def start_from(self, records: dict[str, bytes]) -> bool:
        try:
            self.world.restart(records)
        except StateError:
            return False
        self.world.records = dict(records)
        return True

    def attack(self) -> None:
        """Everything that could give a second signature, from any state that it ever stored."""
        for records in (self.charged, dict(self.world.records), self.before):
            if not self.start_from(records):
                continue
            for which in (1, 0):
                for store in (False, True):
                    try:
                        self.seal(which, store=store)
                    except OdpError:
                        continue
                    self.take()
                    self.world.core.commit()
                    self.take()


@pytest.mark.parametrize("aggregation", ["masked", "secagg+"])
@pytest.mark.parametrize("killed", ["made", "stored", "in force", "taken"])
def test_r166_no_second_sum_is_signed_under_one_charge(make_statistics: Make, aggregation: str, killed: str) -> None:
    round = Masked(make_statistics, aggregation)
    round.seal(0, store=killed != "made")
    round.take()
    assert round.signed == set(), "a signature left before its hash was in force"
    if killed in ("in force", "taken"):
        round.world.core.commit()
    if killed == "taken":
        round.take()
        assert len(round.signed) == 1
    round.attack()
    assert len(round.signed) <= 1
    # Of SecAgg+ nothing is left after a start that lost the session, unless its release was stored.
    assert len(round.signed) == 1 or (aggregation == "secagg+" and killed == "made")


@pytest.mark.parametrize("aggregation", ["masked", "secagg+"])
def test_r166_without_a_restart_the_first_sum_is_the_only_one(make_statistics: Make, aggregation: str) -> None:
    round = Masked(make_statistics, aggregation)
    round.seal(0, store=True)
    round.seal(1, store=True)  # idempotent: nothing new is made
    round.world.core.commit()
    round.seal(1, store=True)
    round.take()
    (signed,) = round.signed
    release = common_pb2.Release.FromString(common_pb2.SignedRelease.FromString(signed).release)
    assert len(round.seen) == 2
    assert release.contributions == (3 if aggregation == "masked" else CLIENTS)


def test_r166_the_ledger_names_the_release_that_was_signed(make_statistics: Make) -> None:
    """An auditor who has the log and the ledger sees that the release is the charge's own."""
    round = Masked(make_statistics, "masked")
    with pytest.raises(PrivacyError, match="no release in force"):
        round.world.core.release(round.world.order(0, domains.CLOSE)[0], stored=b"")
    round.seal(0, store=True)
    round.world.core.commit()
    round.take()
    (signed,) = round.signed
    digest = hashlib.sha256(common_pb2.SignedRelease.FromString(signed).release).digest()
    assert round.world.ledger().entries[-1].release_sha256 == digest
