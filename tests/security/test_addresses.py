"""R187: a server that names addresses cannot make a device connect to them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import Host

import odp
from device_runtime.inference.candidates import find_candidates
from device_runtime.inference.offline import newest_model
from device_runtime.network.services import Traffic
from device_runtime.rows.lookup import Lookup
from device_runtime.rows.table_cache import TableCache
from device_runtime.tasks.assignment import open_assignment
from odp.errors import AddressRefused
from odp.v1 import server_pb2


class Listeners:
    """Ports on this machine that count who connects."""

    def __init__(self, count: int) -> None:
        self.sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        self.addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in self.sockets]
        self.connected = 0
        self._lock = threading.Lock()
        for one in self.sockets:
            threading.Thread(target=self._count, args=(one,), daemon=True).start()

    def _count(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with self._lock:
                    self.connected += 1
                connection.close()

    def close(self) -> None:
        for one in self.sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    opened = Listeners(16)
    yield opened
    opened.close()


@pytest.fixture
def world(tmp_path: Path, identity: Any, platform: Any, World: Any) -> Iterator[Any]:
    task = odp.Task(
        name="films", model=odp.MatrixFactorization(items=600, rank=2), data=odp.RatingsData(low=1, high=5),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=20), population="people",
        training=odp.DPAM(steps=1, slices_per_device=40), cohort=odp.Cohort(minimum=2, goal=3),
    )  # fmt: skip
    made = World(tmp_path, identity, platform, task)
    yield made
    made.close()


@pytest.mark.parametrize("role", ["distributor", "aggregator"])
def test_r187_a_server_cannot_choose_where_a_device_connects(world: Any, listeners: Listeners, role: str) -> None:
    world.fill([3])
    participant = world.participant()
    for address in listeners.addresses:
        setattr(world.server.assignment, f"{role}_address", address)
        with world.store(0) as store, pytest.raises(AddressRefused, match=f"as the {role}, which is not pinned"):
            participant.take_part(store, open_assignment(world.server.assignment, population="people"), Traffic())
    # Refused before anything else: not even the service that is where it should be was asked for its evidence.
    assert world.distributor.enclave.asked == world.aggregator.enclave.asked == 0
    assert listeners.connected == 0


def test_r187_a_device_host_ends_with_one_line_and_connected_to_nobody(world: Any, listeners: Listeners) -> None:
    world.fill([3] * 2)
    world.server.assignment.aggregator_address = listeners.addresses[0]
    host = Host(world, count=2)
    with pytest.raises(AddressRefused, match="odp enclave pin-address aggregator"):
        host.run()
    assert listeners.connected == 0


def test_r187_inference_goes_where_the_person_said(world: Any, listeners: Listeners, tmp_path: Path) -> None:
    services = world.services()
    world.server.newest.distributor_address = listeners.addresses[0]
    with pytest.raises(AddressRefused):
        newest_model(
            services, "people", cache=TableCache(tmp_path), folder=tmp_path, charters=world.participant().charters
        )
    lookup = Lookup(services=services, enclaves=world.participant().enclaves)
    offer = server_pb2.GetModelResponse.FromString(world.server.newest.SerializeToString())
    with pytest.raises(odp.OdpError):
        find_candidates(lookup, offer, cache=TableCache(tmp_path), charters=world.participant().charters)
    assert listeners.connected == 0
