"""Every decoder of bytes from outside, with an input that it accepts: what both fuzzers feed.

A decoder may accept its input or raise an error of ODP (``OdpError``, or protobuf's own where a message does not parse
at all: gRPC answers that by itself). Anything else is a crash. A ``private`` decoder reads what a device keeps secret:
its errors must not repeat a byte of it.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from device_runtime.tasks.assignment import open_assignment
from odp.algorithms.dense import DenseQuery, Grid
from odp.algorithms.dpam.config import DPAM, RatingsData
from odp.algorithms.implicit.config import ImplicitData, ImplicitDPAM
from odp.algorithms.registry import algorithm_for
from odp.algorithms.statistics.task import Histogram, Mean, Statistics
from odp.crypto import DecryptionError, HpkeKey, SigningKey, domains
from odp.crypto.secure_aggregation.masked import unmasked
from odp.crypto.segments import open_segments, seal_segments
from odp.errors import OdpError
from odp.models.matrix_factorization import MatrixFactorization
from odp.privacy.events import GaussianRelease
from odp.privacy.ledger import Ledger
from odp.privacy.ledger_entry import Budget, entries_of, lines_of
from odp.privacy.ledger_state import LedgerHead
from odp.protocol.catalogues.catalogue import Catalogue
from odp.protocol.catalogues.step import Step
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.tables import manifest_for, slices_from, table_bytes
from odp.signed.task import open_manifest, open_order, open_task, sign_manifest, sign_task, task_sha256
from odp.tasks.file import parse_task, render_task
from odp.tasks.task import Task
from odp.trust.enclave.evidence import read_token
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues
from odp.trust.enrolment.attesters.emulated import EmulatedVendor, EmulatedVerifier
from odp.trust.enrolment.token_key import TokenKey, open_token_key
from odp.v1 import aggregator_pb2, common_pb2, distributor_pb2, enrolment_pb2, server_pb2
from trusted_aggregator.modes.masked.enclave_half import MaskedQuery

#: What a decoder may raise.
ERRORS = (OdpError, DecodeError)

_POPULATION = "people"
_GRID = Grid.chosen(size=9, clip=1.0, noise_std=1.0, maximum=10)
_KEY = SigningKey.from_bytes(bytes(range(32)))
_RECIPIENT = HpkeKey.generate()
_ITEMS, _PLACES = 12, 4
_NOW = 1_790_000_000.0


def _vendor() -> EmulatedVendor:
    with tempfile.TemporaryDirectory() as folder:
        return EmulatedVendor.open(Path(folder) / "vendor", clock=lambda: _NOW)


_VENDOR = _vendor()


@dataclass(frozen=True)
class Decoder:
    """``decode`` takes the bytes; ``accepted`` is an input that it takes."""

    name: str
    decode: Callable[[bytes], object]
    accepted: bytes
    private: bool = False


def decoders() -> list[Decoder]:
    """All of them; the order is fixed."""
    ratings, implicit = (sign_task(_task(implicit=kind).definition(), _KEY) for kind in (False, True))
    statistics = sign_task(_statistics().definition(), _KEY)
    manifest = _manifest(ratings)
    order = aggregator_pb2.RoundOrder(task_sha256=bytes(32), round=1, model_sha256=bytes(32))
    found = [
        Decoder("a task definition, behind its signature", _as_task, ratings.definition),
        Decoder("a task on implicit data, behind its signature", _as_task, implicit.definition),
        Decoder("a signed task", lambda data: open_task(common_pb2.SignedTask.FromString(data)), _bytes(ratings)),
        Decoder("a model manifest, behind its signature", _as_manifest(ratings), _bytes(manifest)),
        Decoder("a round order, behind its signature", _as_order, _bytes(order)),
        Decoder("an assignment", _as_assignment, _assignment(ratings, manifest)),
        Decoder("selected rows", _as_rows(manifest, ratings), _rows(ratings), private=True),
        Decoder("an evidence token", lambda data: read_token(data.decode("latin-1")), _token()),
        Decoder("an enclave's policy", EnclavePolicy.from_bytes, EnclavePolicy(role="aggregator").to_bytes()),
        Decoder("reference values", _as_reference_values, _reference_values()),
        Decoder("a ledger", Ledger.decode, _ledger().encode()),
        Decoder("entries of a ledger", lambda data: list(entries_of(data)), lines_of(_ledger().entries)),
        Decoder("the head of a ledger", LedgerHead.decode, _ledger().state.head.encode()),
        Decoder("a task file", lambda data: parse_task(data.decode("latin-1")), render_task(_task()).encode()),
        Decoder("a statistics task, behind its signature", _as_task, statistics.definition),
        Decoder("an assignment of statistics", _as_assignment, _assignment(statistics, _manifest(statistics))),
        Decoder(
            "a file of statistics", lambda data: parse_task(data.decode("latin-1")), render_task(_statistics()).encode()
        ),
        Decoder(
            "a contribution in segments",
            _opened,
            seal_segments(_RECIPIENT.public, bytes(100), b"info"),
            private=True,
        ),
    ]
    found.append(Decoder("a token key, behind its signature", _as_token_key, _token_key()))
    found.append(
        Decoder("a statement of an emulated device", _as_statement, _VENDOR.device(bytes(32)).attest(bytes(32)))
    )
    masked_query = MaskedQuery(DenseQuery("asked", _GRID), info=b"info")
    found.append(Decoder("a step of a catalogue", Step.decode, _catalogue().steps[1]))
    found.append(Decoder("a catalogue", Catalogue.from_bytes, _catalogue().to_bytes()))
    found.append(Decoder("the seed of a masked contribution", masked_query.check, bytes(64), private=True))
    found.append(Decoder("the host's sum of masked vectors", _unmasked, bytes(4 * _GRID.size)))
    for kind, task in (("ratings", ratings), ("implicit data", implicit), ("statistics", statistics)):
        algorithm = algorithm_for(open_task(task))
        for number in range(len(algorithm.planned_releases())):
            query = algorithm.query(number)
            name = f"a payload of round {number} on {kind}"
            found.append(Decoder(name, query.check, _payload(query.payload_bytes), private=True))
    return found


def _task(*, implicit: bool = False) -> Task:
    return Task(
        name="films",
        population=_POPULATION,
        model=MatrixFactorization(items=_ITEMS, rank=2),
        data=ImplicitData() if implicit else RatingsData(low=1, high=5),
        privacy=UserLevelDP(epsilon=8.0, delta=1e-6, max_items_per_user=_PLACES),
        training=ImplicitDPAM(steps=1, head_items=6) if implicit else DPAM(steps=1),
        cohort=Cohort(minimum=3, goal=3),
    )


def _statistics() -> Statistics:
    return Statistics(
        name="asked",
        population=_POPULATION,
        queries={
            "items": Histogram(bins=_ITEMS),
            "values": Histogram(low=1, high=5, bins=4, counts="records", clip=2.0),
            "mean": Mean(low=1, high=5),
        },
        privacy=UserLevelDP(epsilon=8.0, delta=1e-6),
        cohort=Cohort(minimum=3, goal=3),
    )


def _unmasked(data: bytes) -> object:
    nothing = np.zeros(_GRID.size, dtype=np.int64)
    return unmasked(data, nothing, noise=nothing)


def _opened(data: bytes) -> object:
    try:
        return open_segments(_RECIPIENT, data, b"info")
    except DecryptionError:
        return None


def _bytes(message: common_pb2.SignedTask | common_pb2.ModelManifest | aggregator_pb2.RoundOrder) -> bytes:
    return message.SerializeToString(deterministic=True)


# Whatever is signed is signed here too, so that the checks behind the signature are reached.


def _as_task(data: bytes) -> object:
    return open_task(common_pb2.SignedTask(definition=data, signature=_KEY.sign(domains.TASK, data)))


def _as_manifest(task: common_pb2.SignedTask) -> Callable[[bytes], object]:
    def decode(data: bytes) -> object:
        signed = common_pb2.SignedManifest(manifest=data, signature=_KEY.sign(domains.MANIFEST, data))
        return open_manifest(signed, task=task, developer_key=_KEY.public)

    return decode


def _as_order(data: bytes) -> object:
    return open_order(data, _KEY.sign(domains.OPEN, data), domain=domains.OPEN, developer_key=_KEY.public)


def _as_token_key(data: bytes) -> object:
    signed = enrolment_pb2.SignedTokenKey(token_key=data, signature=_KEY.sign(domains.TOKEN_KEY, data))
    wanted = {"issuer_key": _KEY.public, "population": _POPULATION, "task_sha256": bytes(32), "round": 1}
    return open_token_key(signed, **wanted)  # type: ignore[arg-type]


def _token_key() -> bytes:
    modulus = (2**2048 - 1).to_bytes(256, "big")
    return TokenKey(_POPULATION, bytes(32), 1, modulus, 2**31).signed(_KEY).token_key


def _as_statement(data: bytes) -> object:
    return EmulatedVerifier(_VENDOR.root_pem).verify(data, bytes(32), now=_NOW)


def _as_assignment(data: bytes) -> object:
    return open_assignment(server_pb2.Assignment.FromString(data), population=_POPULATION)


def _manifest(task: common_pb2.SignedTask) -> common_pb2.ModelManifest:
    server = algorithm_for(open_task(task)).server()
    return manifest_for(server.broadcast(server.start()), task_sha256(task))


def _assignment(task: common_pb2.SignedTask, manifest: common_pb2.ModelManifest) -> bytes:
    return server_pb2.Assignment(
        task=task,
        round=0,
        model=sign_manifest(manifest, _KEY),
        distributor_address="127.0.0.1:7201",
        aggregator_address="127.0.0.1:7202",
    ).SerializeToString()


def _as_rows(manifest: common_pb2.ModelManifest, task: common_pb2.SignedTask) -> Callable[[bytes], object]:
    keys = np.arange(_PLACES, dtype=np.int64)
    return lambda data: slices_from(manifest, keys, distributor_pb2.SelectedRows.FromString(data))


def _rows(task: common_pb2.SignedTask) -> bytes:
    server = algorithm_for(open_task(task)).server()
    broadcast = server.broadcast(server.start())
    dense = [table_bytes(table) for table in broadcast.tables if not table.keyed]
    rows = broadcast.keyed.rows[:_PLACES].astype("<f4").tobytes()
    return distributor_pb2.SelectedRows(rows=rows, dense=dense).SerializeToString()


def _catalogue() -> Catalogue:
    return Catalogue.make(_POPULATION, ["a", "b"]).change(add=["c"], retire=["a"], withdraw=[1])


def _token() -> bytes:
    header = {"alg": "ES384", "typ": "JWT", "x5c": [base64.b64encode(bytes(64)).decode()] * 2}
    parts = (json.dumps(header).encode(), json.dumps({"iss": "someone"}).encode(), bytes(96))
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


def _as_reference_values(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reference_values.json"
        path.write_bytes(data)
        return ReferenceValues.load(path)


def _reference_values() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reference_values.json"
        ReferenceValues(
            roots=(),
            image_digests={"aggregator": ("sha384:" + "a" * 96,)},
            policy_sha256={"aggregator": ("b" * 64,)},
            allow_emulated=True,
        ).save(path)
        return path.read_bytes()


def _ledger() -> Ledger:
    release = GaussianRelease(name="counts", sensitivity=2.0, noise_std=40.0, coordinates=_ITEMS)
    budget = Budget(8.0, 1e-6)
    return Ledger(_POPULATION).charge(
        task_id="a" * 64,
        round=0,
        events=(release,),
        contributions=100,
        population_size=100,
        id_set_sha256=bytes(32),
        noise_id=bytes(32),
        task_budget=budget,
        population_budget=budget,
    )


def _payload(size: int) -> bytes:
    """Items 1, 2, 3, 4 at the front, as the round of counts has them; zeros elsewhere, which are weights of nothing."""
    return np.arange(1, _PLACES + 1, dtype="<u4").tobytes() if size == 4 * _PLACES else bytes(size)
