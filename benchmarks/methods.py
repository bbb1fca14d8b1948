"""What a device costs all servers together by each way to get rows, and whether the planner takes the best of them.

Devices ask over TLS and check what they get. Bytes are those of messages; processor time is that of the operating
system's books, of all processes of the distributor and of the helper. ``lwe`` counts with its hint, as a table that
every round replaces would have it; where a table is too large for a quick run, or for the service, its bytes follow
from the format and its processor time from products that were timed by themselves.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.harness import Figure, Limit
from benchmarks.private_retrieval import LATTICE_CPU
from benchmarks.scanning import Shape
from benchmarks.served import KEYS, TABLE, Model, Parties, signed_model
from device_runtime.network.services import Services, Traffic
from odp.broadcast.planner import Cost, plan_table
from odp.broadcast.terms import ALL, ENCLAVE, LATTICE_KEYS, LWE, PIR
from odp.crypto import SigningKey, pir, seal
from odp.crypto.domains import helper_query_info, select_info, selected_aad
from odp.crypto.pir import lwe, records
from odp.crypto.pir.shape import SEED_BYTES
from odp.errors import ServiceError
from odp.v1 import distributor_pb2, retrieval_pb2

#: More than a batch, and fewer than the threads of the distributor's server.
AT_ONCE = 12
#: Names of figures behind the table's: of these ways, and of what many devices at once cost.
METHODS = (ENCLAVE, ALL, PIR, LWE)
UP, DOWN, CPU = "bytes up per device", "bytes down per device", "CPU per device"
MANY = f"{AT_ONCE} at once"

# A hint takes a thousand passes over the table.
_LARGEST_HINTED = 8 * 10**6
_MILLI = 1e3
_Ask = Callable[[Traffic], None]


def methods(
    parties: Parties,
    services: Services,
    shape: Shape,
    developer: SigningKey,
    *,
    seconds: float,
    alone: Sequence[Figure] = (),
) -> list[Figure]:
    """Publishes ``shape`` and measures every way for ``seconds``; ``alone`` holds what was timed by itself.

    Raises:
      ServiceError: rows came that are not the table's: no figure would mean anything.
    """
    plain = signed_model(shape, developer)
    private = signed_model(shape, developer, PIR, helper_key=parties.helper_key)
    for model in (plain, private):
        parties.publish(model)
    asks: dict[str, _Ask] = {
        ENCLAVE: lambda traffic: select(services, parties, plain, traffic),
        ALL: lambda traffic: download(services, parties, plain, traffic),
        PIR: lambda traffic: select_privately(services, parties, private, traffic),
    }
    if shape.bytes <= _LARGEST_HINTED:
        static = signed_model(shape, developer, LWE)
        parties.publish(static)
        asks[LWE] = lambda traffic: select_by_lattice(services, parties, static, traffic)
    costs = {method: _cost(parties, method, ask, seconds) for method, ask in asks.items()}
    if LWE not in costs:
        costs[LWE] = _lattice_cost(shape, alone)
    many = {method: _together(parties, asks[method], seconds) for method in (ENCLAVE, PIR)}
    return [
        *(figure for method in METHODS for figure in _figures(shape, costs[method])),
        *(
            Figure(f"{shape}: {CPU}, {method}, {MANY}", _MILLI * used, "ms", None,
                   Limit("the whole table", _MILLI * costs[ALL].cpu))
            for method, used in many.items()
        ),
        planned(shape, costs),
    ]  # fmt: skip


def planned(shape: Shape, costs: dict[str, Cost]) -> Figure:
    """How much more the planner's choice costs than the best way of those that were measured."""
    chosen = plan_table(TABLE, rows=shape.rows, row_bytes=shape.row_bytes, keys=KEYS, helper=True).chosen
    best = min(costs.values(), key=lambda cost: cost.seconds)
    name = f"{shape}: cost of the planner's choice, {chosen}, over the best, {best.method}"
    return Figure(name, costs[chosen].seconds / best.seconds, "", "<= 1.5")


def select(services: Services, parties: Parties, model: Model, traffic: Traffic) -> None:
    """Asks the enclave."""
    keys = _keys(model)
    reply_key = secrets.token_bytes(32)
    wanted = distributor_pb2.SelectKeys(table=TABLE, keys=keys.astype("<u4").tobytes(), reply_key=reply_key)
    sealed = seal(parties.hpke_key, wanted.SerializeToString(), select_info(model.id))
    request = distributor_pb2.SelectRequest(model_sha256=model.id, sealed_keys=sealed)
    reply = services.select(parties.address, request, traffic)
    opened = AESGCM(reply_key).decrypt(bytes(12), reply.sealed_rows, selected_aad(model.id))
    _check(model, keys, distributor_pb2.SelectedRows.FromString(opened).rows)


def download(services: Services, parties: Parties, model: Model, traffic: Traffic) -> None:
    """Fetches the whole table."""
    data = services.download(parties.address, model.id, model.entry, traffic)
    if hashlib.sha256(data).digest() != model.entry.sha256:
        raise ServiceError("the distributor sent another table than it was given")


def select_privately(services: Services, parties: Parties, model: Model, traffic: Traffic) -> None:
    """Asks leader and helper, and for the table's shape before."""
    keys = _keys(model)
    wanted = retrieval_pb2.GetShapeRequest(model_sha256=model.id, table=TABLE)
    shape = pir.Shape.from_bytes(services.table_shape(parties.address, wanted, traffic).shape)
    leader, helper, secret = pir.query(keys, shape)
    query = retrieval_pb2.HelperQuery(table=TABLE, query=helper, pad_seed=secret.pad_seed).SerializeToString()
    request = retrieval_pb2.SelectPrivatelyRequest(
        model_sha256=model.id,
        table=TABLE,
        leader_query=leader,
        sealed_helper_query=seal(bytes.fromhex(parties.helper_key), query, helper_query_info(model.id)),
    )
    reply = services.select_privately(parties.address, request, traffic)
    _check(model, keys, pir.recover(secret, reply.answer).tobytes())


def select_by_lattice(services: Services, parties: Parties, model: Model, traffic: Traffic) -> None:
    """Asks the host alone, with the hint of this version and as many requests as the keys need."""
    keys = _keys(model)
    describe = retrieval_pb2.DescribeHintRequest(model_sha256=model.id, table=TABLE)
    shape = pir.Shape.from_bytes(services.describe_hint(parties.address, describe, traffic).shape)
    wanted = retrieval_pb2.GetHintRequest(model_sha256=model.id, table=TABLE)
    hint = services.hint(parties.address, wanted, lwe.hint_bytes(shape), traffic)
    for start in range(0, KEYS, LATTICE_KEYS):
        asked = keys[start : start + LATTICE_KEYS]
        request, secret = lwe.query(asked, shape)
        sent = retrieval_pb2.SelectByLatticeRequest(model_sha256=model.id, table=TABLE, query=request)
        reply = services.select_by_lattice(parties.address, sent, traffic)
        _check(model, asked, lwe.recover(secret, reply.answer, hint).tobytes())


def _cost(parties: Parties, method: str, ask: _Ask, seconds: float) -> Cost:
    """Of one device at a time; the first one finds everything as it is for the next."""
    ask(Traffic())
    traffic = Traffic()
    ask(traffic)
    cpu = sum(parties.used(1, seconds, lambda: ask(Traffic())).values())
    return Cost(method, up=traffic.up, down=traffic.down, cpu=cpu, note="")


def _together(parties: Parties, ask: _Ask, seconds: float) -> float:
    return sum(parties.used(AT_ONCE, seconds, lambda: ask(Traffic())).values())


def _lattice_cost(shape: Shape, alone: Sequence[Figure]) -> Cost:
    product = next(figure.value for figure in alone if figure.name == f"{shape}: {LATTICE_CPU}") / _MILLI
    cap = bytes(records.cap_nodes(shape.rows, shape.row_bytes) * records.NODE_BYTES)
    public = pir.Shape(shape.rows, shape.row_bytes, LATTICE_KEYS, bytes(SEED_BYTES), bytes(32), cap)
    requests = -(-KEYS // LATTICE_KEYS)
    return Cost(
        LWE,
        up=requests * lwe.request_bytes(public),
        down=requests * lwe.reply_bytes(public) + lwe.hint_bytes(public) + len(public.to_bytes()),
        cpu=requests * LATTICE_KEYS * product,
        note="",
    )


def _figures(shape: Shape, cost: Cost) -> list[Figure]:
    whole = Limit("the whole table", shape.bytes)
    return [
        Figure(f"{shape}: {UP}, {cost.method}", cost.up, "B"),
        Figure(f"{shape}: {DOWN}, {cost.method}", cost.down, "B", None, whole),
        Figure(f"{shape}: {CPU}, {cost.method}", _MILLI * cost.cpu, "ms"),
    ]


def _keys(model: Model) -> npt.NDArray[np.int64]:
    generator = np.random.default_rng(int.from_bytes(secrets.token_bytes(4), "big"))
    return generator.integers(0, len(model.rows), KEYS)


def _check(model: Model, keys: npt.NDArray[np.int64], found: Any) -> None:
    if found != model.rows[keys].tobytes():
        raise ServiceError("the distributor answered with other rows than those of its table")
