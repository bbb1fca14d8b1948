"""A task that no distributor could serve is refused when it is made; one at the limits works to the last byte."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import odp
from distributor.enclave import DistributorCore
from distributor.interface import open_header
from distributor.program import LIMITS
from odp.algorithms.registry import algorithm_for
from odp.crypto import hpke
from odp.crypto.domains import select_info, selected_aad
from odp.crypto.pir import Shape, records, reply_bytes
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError
from odp.protocol.wire.encoding import number_of
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.protocol.wire.tables import manifest_for, padded_keys, slices_from, table_bytes
from odp.signed.broadcast.config import plan
from odp.signed.broadcast.terms import MAX_KEYS_BYTES, MAX_MODEL_BYTES, MAX_SELECTED_BYTES, MOST_PIR_KEYS, ServedSizes
from odp.signed.task import check_definition, model_sha256, sign_manifest, sign_task, task_sha256
from odp.transport import channel
from odp.v1 import broadcast_pb2, common_pb2, distributor_pb2, encoding_pb2

KEY = SigningKey.generate()
ENCLAVE = hpke.HpkeKey.generate()


def task(*, items: int, slices: int, rank: int = 8, half: bool = False) -> common_pb2.TaskDefinition:
    definition = odp.Task(
        name="films",
        model=odp.MatrixFactorization(items=1000, rank=rank),
        data=odp.RatingsData(),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=10),
        cohort=odp.Cohort(minimum=20),
    ).definition()
    definition.model.items, definition.dpam.slices_per_device = items, slices
    definition.developer_key = KEY.public
    if half:
        definition.dpam.items_encoding = encoding_pb2.TABLE_ENCODING_FLOAT16
    return definition


def asked_over_the_wire(definition: common_pb2.TaskDefinition) -> int:
    """Publishes a model, and asks for as many rows as the task says; bytes of the request."""
    algorithm = algorithm_for(definition)
    signed, generator = sign_task(definition, KEY), np.random.default_rng(1)
    tables = tuple(
        TableValues(
            table.name, generator.normal(size=(table.rows, table.width)).astype(np.float32), table.keyed,
            algorithm.encoding if table.keyed else "float32",
        )
        for table in algorithm.tables
    )  # fmt: skip
    broadcast = ModelVersion(0, tables)
    manifest = manifest_for(broadcast, task_sha256(signed))
    signed_manifest = sign_manifest(manifest, KEY)
    core = DistributorCore(ENCLAVE, select="direct")
    core.install(signed, signed_manifest, {table.name: table_bytes(table) for table in tables})
    model, keys = model_sha256(signed_manifest), np.arange(definition.dpam.slices_per_device)
    wanted = distributor_pb2.SelectKeys(
        table=next(table.name for table in tables if table.keyed), keys=padded_keys(keys, len(keys)),
        reply_key=bytes(32),
    )  # fmt: skip
    sealed = hpke.seal(ENCLAVE.public, wanted.SerializeToString(), select_info(model))
    answer = distributor_pb2.SelectResponse(sealed_rows=core.select(model, sealed))
    assert answer.ByteSize() < MAX_SELECTED_BYTES + 2**20 < channel.MAX_REPLY_BYTES
    opened = AESGCM(bytes(32)).decrypt(bytes(12), answer.sealed_rows, selected_aad(model))
    slices = slices_from(manifest, keys, distributor_pb2.SelectedRows.FromString(opened))
    assert len(slices.rows) == len(keys)
    return distributor_pb2.SelectRequest(model_sha256=model, sealed_keys=sealed).ByteSize()


def test_the_longest_reply_arrives_and_a_row_more_is_refused_when_the_task_is_made() -> None:
    sizes = ServedSizes.of(task(items=1000, slices=10, rank=64))
    most = (MAX_SELECTED_BYTES - sizes.dense_bytes) // sizes.row_bytes
    largest = task(items=most + 1, slices=most, rank=64)
    check_definition(largest)
    asked_over_the_wire(largest)
    for method in ("METHOD_UNSPECIFIED", "METHOD_ALL"):
        beyond = task(items=most + 1, slices=most + 1, rank=64)
        if method != "METHOD_UNSPECIFIED":
            beyond.broadcast.method = broadcast_pb2.BroadcastTerms.Method.Value(method)
        with pytest.raises(ConfigurationError, match=r"reply_bytes=\d+ .* lower slices_per_device or the rank"):
            sign_task(beyond, KEY)


def test_the_longest_request_arrives_and_a_key_more_needs_another_method() -> None:
    most = MAX_KEYS_BYTES // 4
    largest = task(items=most + 1, slices=most, rank=2, half=True)
    check_definition(largest)
    assert asked_over_the_wire(largest) <= LIMITS.request_bytes
    beyond = task(items=most + 1, slices=most + 1, rank=2, half=True)
    with pytest.raises(ConfigurationError, match=r"request_bytes=\d+ .* broadcast.method='all'"):
        check_definition(beyond)
    assert "more than" in next(cost.excluded for cost in plan(beyond, helper=False).costs if cost.method == "enclave")
    beyond.broadcast.method = broadcast_pb2.BroadcastTerms.METHOD_ALL
    check_definition(beyond)


@pytest.mark.parametrize("method", ["METHOD_UNSPECIFIED", "METHOD_ALL", "METHOD_PIR"])
def test_the_largest_model_may_be_published_and_a_row_more_is_refused_when_the_task_is_made(method: str) -> None:
    sizes = ServedSizes.of(task(items=1000, slices=10, rank=64))
    most = (MAX_MODEL_BYTES - sizes.dense_bytes) // sizes.row_bytes

    def of(items: int) -> common_pb2.TaskDefinition:
        definition = task(items=items, slices=10, rank=64)
        if method != "METHOD_UNSPECIFIED":
            definition.broadcast.method = broadcast_pb2.BroadcastTerms.Method.Value(method)
        if method == "METHOD_PIR":
            definition.broadcast.helper_key = ENCLAVE.public
        return definition

    signed = sign_task(of(most), KEY)
    with pytest.raises(ConfigurationError, match=r"model_bytes=\d+ to be at most .*lower the items or the rank"):
        sign_task(of(most + 1), KEY)
    for rows in (most, most + 1):
        tables = [
            common_pb2.TableManifest(
                name=table.name, rows=rows if table.keyed else table.rows, width=table.width, sha256=bytes(32),
                keyed=table.keyed, encoding=number_of("float32"),
            )
            for table in algorithm_for(of(most)).tables
        ]  # fmt: skip
        manifest = common_pb2.ModelManifest(task_sha256=task_sha256(signed), tables=tables)
        if rows == most:
            assert open_header(signed, sign_manifest(manifest, KEY)).total_bytes <= MAX_MODEL_BYTES
        else:
            with pytest.raises(ConfigurationError, match="model_bytes="):
                open_header(signed, sign_manifest(manifest, KEY))


def test_what_fits_a_reply_of_the_enclave_fits_one_of_two_parties() -> None:
    """So two parties need no limit of their own but that of their keys; a row of a manifest has at most 256 KiB."""
    for keys in (*range(1, 100, 3), 60, MOST_PIR_KEYS):
        row = min(MAX_SELECTED_BYTES // keys, 4 * 2**16)
        cap = bytes(records.cap_nodes(2**24, row) * records.NODE_BYTES)
        assert reply_bytes(Shape(2**24, row, keys, bytes(32), bytes(32), cap)) < channel.MAX_REPLY_BYTES - 2**20
