"""Devices, a leader and a helper over TLS on free ports: what comes back, what is refused, and what others can see."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from callers import program_identity
from hypothesis import given, settings, strategies as st
from two_parties import METHODS, NOBODY, SECONDS, Parties, Recorder

from device_runtime.network.addresses import PinnedAddresses
from device_runtime.network.services import Services, Traffic
from device_runtime.rows.retrieval import TwoParties
from device_runtime.tasks.assignment import Work, open_model
from distributor.helper_program import helper_key
from distributor.leader import HelperClient
from odp.crypto import domains, seal
from odp.crypto.pir import two_server
from odp.crypto.pir.shape import Shape
from odp.errors import AttestationError, ServiceError, ServiceUnavailable, StaleModel
from odp.protocol.wire.encoding import ENCODINGS, Encoding, row_bytes
from odp.transport.channel import connect
from odp.v1 import distributor_pb2, retrieval_pb2, retrieval_pb2_grpc


@pytest.fixture
def parties(tmp_path: Path, kit: Any) -> Iterator[Parties]:
    opened = Parties(tmp_path, kit)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory, kit: Any) -> Iterator[tuple[Parties, dict[str, Any]]]:
    """Parties with one model of equal content per method and encoding, for tests that change nothing."""
    opened = Parties(tmp_path_factory.mktemp("parties"), kit)
    for version, encoding in enumerate(ENCODINGS[1:], start=1):
        for method in METHODS:
            opened.encoded[method, encoding] = opened.published(method, version, encoding)
    models = {method: opened.published(method) for method in METHODS}
    opened.encoded |= {(method, "float32"): model for method, model in models.items()}
    yield opened, models
    opened.close()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(keys=st.sets(st.integers(0, 39), max_size=8).map(sorted), encoding=st.sampled_from(ENCODINGS))
@pytest.mark.slow
def test_all_methods_give_the_rows_of_the_table(lasting: Any, keys: list[int], encoding: Encoding) -> None:
    parties, _ = lasting
    for method in METHODS:
        model = parties.encoded[method, encoding]
        found = parties.fetch(model, keys)
        expected = model.broadcast.keyed.rows[np.array(keys, dtype=np.int64)]
        np.testing.assert_array_equal(found.rows, expected, method)
        assert found.keys.tolist() == keys
        for name, rows in model.broadcast.dense.items():
            np.testing.assert_array_equal(found.dense[name], rows, method)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_two_parties_answer_with_rows_as_they_are_written(lasting: Any, encoding: Encoding) -> None:
    parties, _ = lasting
    model = parties.encoded["pir", encoding]
    shape = parties.stub.GetShape(retrieval_pb2.GetShapeRequest(model_sha256=model.id, table="items"), timeout=SECONDS)
    width = model.broadcast.keyed.rows.shape[1]
    assert Shape.from_bytes(shape.shape).row_bytes == row_bytes(width, encoding)


def test_the_shape_is_asked_once_per_version(lasting: Any) -> None:
    parties, models = lasting
    model = models["pir"]
    work = Work(open_model(model.task, model.manifest), 0, parties.leader.address, NOBODY)
    two = TwoParties(parties.services, frozenset([bytes.fromhex(parties.key)]))
    down = []
    for keys in ([3, 9], []):
        traffic = Traffic()
        two.fetch(work, np.array(keys, dtype=np.int64), traffic)
        down.append(traffic.down)
    assert down[0] - down[1] > 32 > down[1] - down[0]


PRIVATE = ([0, 1, 2, 3, 4, 5, 6, 7], [3, 9, 11, 22, 30, 37, 38, 39], [39], [])


def stored(folder: Path) -> dict[str, bytes]:
    """Every byte of a state folder, by name; names of models follow from what was published."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("method", list(METHODS))
def test_traffic_and_stored_bytes_say_nothing_of_the_keys(
    lasting: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Order, direction and length of all messages, the parties' logs and disks: equal for all keys, and for none.

    Messages are compared as gRPC hands them to TLS. Beneath, lengths follow from theirs, but for those of handshakes
    and of HTTP/2's own frames, which know no message.
    """
    parties, models = lasting
    runs = []
    for keys in PRIVATE:
        recorder = Recorder()
        pinned = PinnedAddresses.at(distributor=parties.leader.address)
        services = Services(NOBODY, parties.leader.ca_pem, pinned=pinned)
        peer = services._peers.at("distributor", parties.leader.address)
        for stub, names in (
            (peer.distributor, ("Select", "Download", "ListBlocks")),
            (peer.retrieval, ("GetShape", "SelectPrivately")),
            (peer.attestation, ()),
        ):
            for name in names:
                monkeypatch.setattr(stub, name, recorder.wrap(name, getattr(stub, name)))
        answer = HelperClient.answer

        def recorded(client: Any, model: bytes, sealed: bytes, recorder: Any = recorder, answer: Any = answer) -> bytes:
            recorder.seen.append(("Answer", "up", len(sealed)))
            found: bytes = answer(client, model, sealed)
            recorder.seen.append(("Answer", "down", len(found)))
            return found

        with monkeypatch.context() as patched:
            patched.setattr(HelperClient, "answer", recorded)
            before = parties.lines.getvalue()
            traffic = Traffic()
            parties.fetch(models[method], keys, traffic=traffic, services=services)
        said = parties.lines.getvalue()[len(before) :]
        services.close()
        disks = [stored(parties.root / "leader"), stored(parties.root / "helper")]
        runs.append((recorder.seen, traffic, said, disks))
    assert any(direction == "down" for _, direction, _ in runs[0][0])
    assert (method == "pir") == any(name == "Answer" for name, _, _ in runs[0][0])
    for run in runs[1:]:
        assert run == runs[0]


def test_the_comparison_would_see_one_key_more(lasting: Any, kit: Any) -> None:
    """Queries for tables that differ in the number of keys have other lengths: the number is the task's, and public."""
    parties, models = lasting
    model = models["pir"]
    request = retrieval_pb2.GetShapeRequest(model_sha256=model.id, table="items")
    shape = Shape.from_bytes(parties.stub.GetShape(request, timeout=SECONDS).shape)
    rows = model.broadcast.keyed.rows
    other = two_server.Database.of(rows, keys=9, seed=model.id, table_sha256=shape.table_sha256).shape
    assert two_server.request_bytes(other) != two_server.request_bytes(shape)


def refused(call: Callable[[], object], code: grpc.StatusCode) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() == code, caught.value.details()
    details = str(caught.value.details())
    assert "\n" not in details
    return details


def honest(parties: Parties, model: Any) -> retrieval_pb2.SelectPrivatelyRequest:
    """A request that is answered."""
    request = retrieval_pb2.GetShapeRequest(model_sha256=model.id, table="items")
    shape = Shape.from_bytes(parties.stub.GetShape(request, timeout=SECONDS).shape)
    leader, helper, secret = two_server.query([1, 2], shape)
    return asked(parties, model, leader, helper, secret.pad_seed)


def asked(
    parties: Parties, model: Any, leader: bytes, helper: bytes, pad_seed: bytes, table: str = "items"
) -> retrieval_pb2.SelectPrivatelyRequest:
    wanted = retrieval_pb2.HelperQuery(table=table, query=helper, pad_seed=pad_seed)
    return retrieval_pb2.SelectPrivatelyRequest(
        model_sha256=model.id,
        table="items",
        leader_query=leader,
        sealed_helper_query=seal(
            bytes.fromhex(parties.key), wanted.SerializeToString(), domains.helper_query_info(model.id)
        ),
    )


def test_malformed_queries_are_refused_in_one_line(lasting: Any) -> None:
    parties, models = lasting
    model = models["pir"]
    good = honest(parties, model)
    parties.stub.SelectPrivately(good, timeout=SECONDS)

    def changed(**fields: Any) -> Callable[[], object]:
        request = retrieval_pb2.SelectPrivatelyRequest()
        request.CopyFrom(good)
        for name, value in fields.items():
            setattr(request, name, value)
        return lambda: parties.stub.SelectPrivately(request, timeout=SECONDS)

    query, sealed = good.leader_query, good.sealed_helper_query
    bad = grpc.StatusCode.INVALID_ARGUMENT
    assert "32 bytes" in refused(changed(model_sha256=b"short"), bad)
    assert "not held here" in refused(changed(model_sha256=bytes(32)), grpc.StatusCode.NOT_FOUND)
    assert "items" in refused(changed(table="itemz"), bad)
    assert "bytes" in refused(changed(leader_query=query[:-1]), bad)
    assert "version" in refused(changed(leader_query=b"\xff" + query[1:]), bad)
    assert "other server" in refused(changed(leader_query=query[:1] + b"\x01" + query[2:]), bad)
    assert "another table" in refused(changed(leader_query=query[:2] + bytes(32) + query[34:]), bad)
    assert "malformed helper query" in refused(changed(sealed_helper_query=sealed[:-1]), bad)
    assert "malformed helper query" in refused(changed(sealed_helper_query=b""), bad)
    for request in (
        asked(parties, model, query, b"", bytes(32)),
        asked(parties, model, query, query, bytes(32)),  # the leader's half, for the helper
        asked(parties, model, query, query, b"short"),
        asked(parties, model, query, query, bytes(32), table="itemz"),
    ):
        said = refused(lambda request=request: parties.stub.SelectPrivately(request, timeout=SECONDS), bad)
        assert said == "malformed helper query"


def test_other_methods_models_are_not_answered_by_two_parties(lasting: Any) -> None:
    parties, models = lasting
    request = retrieval_pb2.GetShapeRequest(model_sha256=models["all"].id, table="items")
    said = refused(lambda: parties.stub.GetShape(request, timeout=SECONDS), grpc.StatusCode.INVALID_ARGUMENT)
    assert "does not use private information retrieval" in said


def test_a_device_asks_no_helper_that_its_person_did_not_pin(lasting: Any) -> None:
    parties, models = lasting
    before = parties.lines.getvalue()
    with pytest.raises(AttestationError, match=f"the helper {parties.key}, which is not pinned"):
        parties.fetch(models["pir"], [1], pinned=False)
    assert parties.lines.getvalue() == before, "nobody was asked"


@pytest.mark.parametrize("keys", [[40], list(range(9))], ids=["out of range", "too many"])
def test_keys_that_the_model_does_not_have_leave_the_device_in_no_message(lasting: Any, keys: list[int]) -> None:
    parties, models = lasting
    with pytest.raises(ServiceError, match="rows that its model does not have"):
        parties.fetch(models["pir"], keys)


def flipped(reply: bytes) -> bytes:
    return reply[:5] + bytes([reply[5] ^ 1]) + reply[6:]


def test_a_helper_that_lies_costs_the_round_trip_and_gives_no_row(
    lasting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties, models = lasting
    answer = HelperClient.answer
    lie: Callable[..., bytes]
    for lie, error, line in (
        (lambda *given: flipped(answer(*given)), ServiceError, "answered with wrong rows"),
        (lambda *given: answer(*given)[:-1], ServiceUnavailable, r"the helper at 127\.0\.0\.1:.* sent .* bytes, not"),
        (lambda *given: bytes(len(answer(*given))), ServiceError, "answered with wrong rows"),
    ):
        monkeypatch.setattr(HelperClient, "answer", lie)
        with pytest.raises(error, match=line):
            parties.fetch(models["pir"], [1, 2])


def test_a_leader_that_tells_another_shape_is_not_asked(lasting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parties, models = lasting
    model = models["pir"]
    rows = model.broadcast.keyed.rows
    (entry,) = (table for table in open_model(model.task, model.manifest).manifest.tables if table.keyed)
    for changes in ({"keys": 7}, {"seed": bytes(32)}, {"table_sha256": bytes(32)}):
        given = {"keys": 8, "seed": model.id, "table_sha256": entry.sha256, **changes}
        shape = two_server.Database.of(rows, **given).shape.to_bytes()
        reply = retrieval_pb2.GetShapeResponse(model_sha256=model.id, shape=shape)
        monkeypatch.setattr(parties.services, "table_shape", lambda *_, reply=reply: reply)
        with pytest.raises(ServiceError, match="the shape of another table"):
            parties.fetch(model, [1])
    garbage = retrieval_pb2.GetShapeResponse(shape=b"garbage")
    monkeypatch.setattr(parties.services, "table_shape", lambda *_: garbage)
    with pytest.raises(ServiceError, match="no shape of a table"):
        parties.fetch(model, [1])


def test_a_helper_that_is_away_is_named_and_devices_go_on_when_it_is_back(parties: Parties) -> None:
    model = parties.published("pir")
    parties.stop_helper()
    with pytest.raises(ServiceUnavailable, match=r"could not ask the helper: nobody answers at 127\.0\.0\.1"):
        parties.fetch(model, [1, 2])
    parties.start_helper()
    np.testing.assert_array_equal(parties.fetch_later(model, [1, 2]).rows, model.broadcast.keyed.rows[[1, 2]])


def test_a_publish_without_the_helper_is_not_acknowledged_and_the_next_one_hands_on(parties: Parties) -> None:
    first = parties.published("pir")
    parties.stop_helper()
    second = parties.developer("pir").model(1)
    said = refused(lambda: parties.publish(second), grpc.StatusCode.UNAVAILABLE)
    assert "could not send the model to the helper" in said
    parties.start_helper()
    np.testing.assert_array_equal(parties.fetch_later(first, [7]).rows, first.broadcast.keyed.rows[[7]])
    parties.publish(second)
    assert len(list((parties.root / "helper" / "models").iterdir())) == 2
    np.testing.assert_array_equal(parties.fetch(second, [7]).rows, second.broadcast.keyed.rows[[7]])


def test_a_helper_that_lost_its_models_gets_them_again(parties: Parties) -> None:
    model = parties.published("pir")
    parties.stop_helper()
    shutil.rmtree(parties.root / "helper" / "models")
    parties.start_helper()
    np.testing.assert_array_equal(parties.fetch_later(model, [3]).rows, model.broadcast.keyed.rows[[3]])


def test_a_version_that_newer_ones_replaced_is_not_found(parties: Parties) -> None:
    developer = parties.developer("pir")
    models = [developer.model(version) for version in range(4)]
    for model in models:
        parties.publish(model)
    with pytest.raises(ServiceError, match="not held here; check in again") as caught:
        parties.fetch(models[0], [1])
    assert caught.value.code is grpc.StatusCode.NOT_FOUND
    for root in ("leader", "helper"):
        assert len(list((parties.root / root / "models").iterdir())) == 3
    parties.fetch(models[1], [1])


@pytest.mark.parametrize("method", list(METHODS))
def test_a_device_with_a_version_that_is_gone_is_told_to_check_in_again(parties: Parties, method: str) -> None:
    old = parties.published(method)
    for version in (1, 2, 3):
        parties.published(method, version)
    with pytest.raises(StaleModel, match=r"^could not .* is not held here; check in again for a newer version$"):
        parties.fetch(old, [3])


def test_a_publish_that_is_cut_hands_nothing_on(parties: Parties) -> None:
    before = parties.published("pir")
    model = parties.developer("pir").model(1)

    def cut() -> Iterator[Any]:
        yield from model.stream(model.payload[: len(model.payload) // 2])

    with pytest.raises(grpc.RpcError) as caught:
        parties.publisher.Publish(cut(), timeout=SECONDS)
    assert "ended before the" in caught.value.details()
    for party in ("leader", "helper"):
        folders = [path.name for path in (parties.root / party / "models").iterdir()]
        assert folders == [before.id.hex()]
    np.testing.assert_array_equal(parties.fetch(before, [3]).rows, before.broadcast.keyed.rows[[3]])
    parties.publish(model)
    np.testing.assert_array_equal(parties.fetch(model, [3]).rows, model.broadcast.keyed.rows[[3]])


def test_a_device_without_space_asks_two_parties_all_the_same(parties: Parties) -> None:
    """Shapes are in memory alone: nothing is written, so that nothing can be left half."""
    model = parties.published("pir")
    before = sorted(parties.root.rglob("*"))
    parties.fetch(model, [3])
    assert sorted(parties.root.rglob("*")) == before


def test_a_task_that_names_another_helper_is_not_acknowledged(parties: Parties) -> None:
    other = parties.developer("pir", key="0b" * 32).model()
    said = refused(lambda: parties.publish(other), grpc.StatusCode.INVALID_ARGUMENT)
    assert f"names the helper {'0b' * 6}" in said
    assert list((parties.root / "helper" / "models").iterdir()) == []


def test_a_cut_replication_leaves_nothing(parties: Parties) -> None:
    model = parties.developer("pir").model()
    assert parties.helper is not None
    identity = program_identity(parties.root, "distributor", parties.root / "ca")
    with connect(parties.helper.address, parties.helper.ca_pem, identity=identity) as channel:
        stub = retrieval_pb2_grpc.HelperServiceStub(channel)

        def cut() -> Iterator[retrieval_pb2.ReplicateRequest]:
            header = distributor_pb2.PublishHeader(task=model.task, model=model.manifest)
            yield retrieval_pb2.ReplicateRequest(header=header)
            yield retrieval_pb2.ReplicateRequest(chunk=model.payload[:100])

        said = refused(lambda: stub.Replicate(cut(), timeout=SECONDS), grpc.StatusCode.INVALID_ARGUMENT)
        assert "ended before" in said
        request = retrieval_pb2.AnswerRequest(model_sha256=model.id, sealed_query=b"x")
        refused(lambda: stub.Answer(request, timeout=SECONDS), grpc.StatusCode.NOT_FOUND)
    assert list((parties.root / "helper" / "models").iterdir()) == []


def test_a_restarted_helper_keeps_its_key(parties: Parties) -> None:
    parties.stop_helper()
    parties.start_helper()
    assert helper_key(parties.root / "helper") == parties.key
