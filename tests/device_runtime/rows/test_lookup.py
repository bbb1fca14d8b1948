"""Public tables over TLS: signed by a server, held by a distributor, looked up by devices."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

import odp
from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.services import Services, Traffic
from device_runtime.rows.lookup import Lookup
from distributor import servicer
from distributor.enclave import DistributorCore
from distributor.model_folders import ModelFolders
from distributor.program import control_servicer
from distributor.servicer import DistributorService, distributor_servicer
from odp._system.files.state_folder import StateFolder
from odp.crypto import HpkeKey, SigningKey
from odp.errors import ConfigurationError, ServiceError, StaleModel
from odp.services.connection import Connection
from odp.signed.tables.table import Table, open_version
from odp.transport.backpressure import Patience
from odp.transport.channel import connect
from odp.transport.logs import Log
from odp.transport.service import serve
from odp.transport.tls import development_identity
from odp.v1 import distributor_pb2, distributor_pb2_grpc, table_pb2_grpc
from server.clients import DistributorClient
from server.operator_token import OperatorToken
from server.tables import NAME, TableBook, TableFiles, TablePublisher, table_servicer

TOKEN = "operator"
ROWS = np.random.default_rng(1).normal(size=(300, 7)).astype(np.float32)


class Place:
    """A server and a distributor on one port of this process; ``sizes`` of all requests and answers of Select."""

    def __init__(self, folder: Path) -> None:
        self.key = SigningKey.from_bytes(bytes(32))
        self.hpke = HpkeKey.generate()
        self.sizes: list[tuple[int, int]] = []
        self.verified_unlike: list[bytes | None] = []
        self.told_key = self.hpke.public
        log = Log("test", stream=io.StringIO())
        self.state = StateFolder.open(folder / "state", "server")
        service = DistributorService(DistributorCore(self.hpke), ModelFolders(self.state.path("models")), log)
        self.book = TableBook(TableFiles(self.state.path("tables")), self.key)
        real, outer = distributor_servicer(service, log), self
        self.cut = False
        self.spoil: Callable[[bytes], bytes] = lambda sealed: sealed

        class Counting(distributor_pb2_grpc.DistributorServiceServicer):
            def Select(self, request: Any, context: Any) -> Any:
                answer = real.Select(request, context)
                outer.sizes.append((request.ByteSize(), answer.ByteSize()))
                return distributor_pb2.SelectResponse(sealed_rows=outer.spoil(answer.sealed_rows))

        orders = control_servicer(service, log)

        class Cutting(distributor_pb2_grpc.DistributorControlServiceServicer):
            def Publish(self, requests: Any, context: Any) -> Any:
                if outer.cut:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
                return orders.Publish(requests, context)

        identity = development_identity(self.state)

        def add(server: grpc.Server) -> None:
            distributor_pb2_grpc.add_DistributorServiceServicer_to_server(Counting(), server)
            distributor_pb2_grpc.add_DistributorControlServiceServicer_to_server(Cutting(), server)

        self.distributor = serve(
            address="127.0.0.1:0", identity=identity, add=add, service_names=[servicer.NAME], workers=4
        )
        address = self.distributor.address
        client = DistributorClient(connect(address, identity.ca_pem), address)
        tables = table_servicer(
            TablePublisher(self.book, client, address_of=lambda definition: address, log=log),
            operator=OperatorToken(TOKEN, "operator.token"),
            log=log,
        )
        self.server = serve(
            address="127.0.0.1:0",
            identity=identity,
            add=lambda server: table_pb2_grpc.add_TableServiceServicer_to_server(tables, server),
            service_names=[NAME],
            workers=4,
        )
        self.ca = identity.ca_pem
        self.services = Services(
            self.server.address, self.ca, pinned=PinnedAddresses.at(distributor=self.distributor.address),
            patience=Patience(wait=lambda _: False),
        )  # fmt: skip
        self.connection = Connection(address=self.server.address, ca=self.ca, token=TOKEN)
        self.lookup = Lookup(services=self.services, enclaves=self)  # type: ignore[arg-type]

    def verified(self, role: str, address: str, *, unlike: bytes | None = None) -> Any:
        """Stands in for ``Enclaves``: evidence has its own tests."""
        self.verified_unlike.append(unlike)
        found, self.told_key = self.told_key, self.hpke.public
        return SimpleNamespace(enclave=SimpleNamespace(hpke_key=found))

    def close(self) -> None:
        self.connection.close()
        self.services.close()
        self.server.stop(0)
        self.distributor.stop(0)
        self.state.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    opened = Place(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8"])
@pytest.mark.parametrize("width", [1, 7])
def test_a_device_gets_the_rows_of_its_keys_in_their_order(place: Place, encoding: Any, width: int) -> None:
    table = Table("genres", ROWS[:, :width], encoding, rows_per_request=8)
    place.connection.publish_table(table)
    found = place.lookup.find("genres", developer_key=place.key.public)
    keys = [299, 0, 7, 7, 3, 250, 0]
    rows = place.lookup.select(found, keys)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, table.rows[keys])


def test_requests_and_answers_have_one_length_and_number_whatever_the_keys(place: Place) -> None:
    place.connection.publish_table(Table("genres", ROWS, "int8", rows_per_request=8))
    found = place.lookup.find("genres")
    traces = []
    for keys in ([], [5], list(range(8)), list(range(100, 116)), [9] * 50):
        place.sizes.clear()
        rows = place.lookup.select(found, keys, requests=2, traffic=Traffic())
        assert len(rows) == len(keys)
        traces.append(list(place.sizes))
    for wrong, message in (([300], "from 0 to 299"), ([-1, 3], "from 0 to 299"), (range(17), "at most 16 distinct")):
        place.sizes.clear()
        with pytest.raises(ConfigurationError, match=message):
            place.lookup.select(found, wrong, requests=2)
        traces.append(list(place.sizes))
    assert all(trace == traces[0] for trace in traces)
    assert len(traces[0]) == 2


def test_one_request_is_made_unless_the_caller_says_how_many(place: Place) -> None:
    place.connection.publish_table(Table("genres", ROWS, rows_per_request=8))
    found = place.lookup.find("genres")
    np.testing.assert_array_equal(place.lookup.select(found, range(8)), ROWS[:8])
    assert len(place.sizes) == 1
    np.testing.assert_array_equal(place.lookup.select(found, range(300), requests=38), ROWS)
    assert len(place.sizes) == 1 + 38


def test_the_same_content_again_is_the_same_version_and_other_content_the_next(place: Place) -> None:
    versions = [place.connection.publish_table(Table("genres", rows)).version for rows in (ROWS, ROWS, ROWS + 1, ROWS)]
    assert versions == [0, 0, 1, 2]
    np.testing.assert_array_equal(place.lookup.select(place.lookup.find("genres"), [4]), ROWS[[4]])


def test_a_version_stays_while_newer_ones_come_and_is_stale_after_that(place: Place) -> None:
    place.connection.publish_table(Table("genres", ROWS))
    old = place.lookup.find("genres")
    for step in (1, 2):
        place.connection.publish_table(Table("genres", ROWS + step))
        np.testing.assert_array_equal(place.lookup.select(old, [4]), ROWS[[4]])
    place.connection.publish_table(Table("genres", ROWS + 3))
    with pytest.raises(StaleModel, match="check in again"):
        place.lookup.select(old, [4])


def test_a_publish_that_is_cut_leaves_devices_with_the_version_before_and_is_finished_later(place: Place) -> None:
    place.connection.publish_table(Table("genres", ROWS))
    place.cut = True
    with pytest.raises(ServiceError):
        place.connection.publish_table(Table("genres", ROWS + 1))
    assert place.lookup.find("genres").opened.version == 0
    np.testing.assert_array_equal(place.lookup.select(place.lookup.find("genres"), [4]), ROWS[[4]])
    place.cut = False
    assert place.connection.publish_table(Table("genres", ROWS + 1)).version == 1
    np.testing.assert_array_equal(place.lookup.select(place.lookup.find("genres"), [4]), ROWS[[4]] + 1)


def test_a_table_that_nobody_announced_is_not_told(place: Place) -> None:
    place.book.sign(Table("genres", ROWS).header())
    with pytest.raises(ServiceError, match="was not published here"):
        place.lookup.find("genres")


def test_only_the_operator_publishes(place: Place) -> None:
    other = Connection(address=place.server.address, ca=place.ca, token="guess")
    with pytest.raises(ServiceError, match="needs the operator's token"):
        other.publish_table(Table("genres", ROWS))
    assert other.address == place.server.address
    other.close()


def test_an_enclave_that_came_back_with_a_new_key_is_asked_for_evidence_again(place: Place) -> None:
    place.connection.publish_table(Table("genres", ROWS))
    old = HpkeKey.generate().public
    place.told_key = old
    np.testing.assert_array_equal(place.lookup.select(place.lookup.find("genres"), [4]), ROWS[[4]])
    assert place.verified_unlike == [None, old]


def test_rows_that_do_not_open_are_an_error_of_the_distributor(place: Place) -> None:
    place.connection.publish_table(Table("genres", ROWS))
    place.spoil = lambda sealed: sealed[:-1] + bytes([sealed[-1] ^ 1])
    with pytest.raises(ServiceError, match="rows that cannot be decrypted"):
        place.lookup.select(place.lookup.find("genres"), [4])


def test_another_developers_table_is_refused_where_the_developer_is_pinned(place: Place) -> None:
    place.connection.publish_table(Table("genres", ROWS))
    with pytest.raises(ConfigurationError, match="another developer"):
        place.lookup.find("genres", developer_key=SigningKey.generate().public)


def test_a_table_under_another_name_than_the_one_that_was_asked_for_is_refused(place: Place) -> None:
    place.connection.publish_table(Table("genres", ROWS))
    record = place.book.newest("genres")
    with pytest.raises(ConfigurationError, match="Expected table 'years', got 'genres'"):
        open_version(record.definition, record.announced, name="years")


def test_a_developer_finds_the_table_under_its_name() -> None:
    assert odp.data.Table is Table
