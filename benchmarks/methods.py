"""What a device costs all servers together by each way to get rows, and whether the planner takes the best of them.

Devices ask over TLS and check what they get. Bytes are those of messages; processor time is that of the operating
system's books, of all processes of the distributor and of the helper.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.harness import Figure, Limit
from benchmarks.scanning import Shape
from benchmarks.served import KEYS, TABLE, Model, Parties, signed_model
from device_runtime.network.services import Services, Traffic
from odp.crypto import SigningKey, pir, seal
from odp.crypto.domains import helper_query_info, select_info, selected_aad
from odp.errors import ServiceError
from odp.signed.broadcast.config import Cost, plan_table
from odp.signed.broadcast.terms import ALL, ENCLAVE, PIR
from odp.v1 import distributor_pb2, retrieval_pb2

#: More than a batch, and fewer than the threads of the distributor's server.
AT_ONCE = 12
#: Names of figures behind the table's: of these ways, and of what many devices at once cost.
METHODS = (ENCLAVE, ALL, PIR)
UP, DOWN, CPU = "bytes up per device", "bytes down per device", "CPU per device"
MANY = f"{AT_ONCE} at once"

_MILLI = 1e3
_Ask = Callable[[Traffic], None]


def methods(
    parties: Parties,
    services: Services,
    shape: Shape,
    developer: SigningKey,
    *,
    seconds: float,
) -> list[Figure]:
    """Publishes ``shape`` and measures every way for ``seconds``.

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
    costs = {method: _cost(parties, method, ask, seconds) for method, ask in asks.items()}
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


def _cost(parties: Parties, method: str, ask: _Ask, seconds: float) -> Cost:
    """Of one device at a time; the first one finds everything as it is for the next."""
    ask(Traffic())
    traffic = Traffic()
    ask(traffic)
    cpu = sum(parties.used(1, seconds, lambda: ask(Traffic())).values())
    return Cost(method, up=traffic.up, down=traffic.down, cpu=cpu, note="")


def _together(parties: Parties, ask: _Ask, seconds: float) -> float:
    return sum(parties.used(AT_ONCE, seconds, lambda: ask(Traffic())).values())


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
