"""Secure aggregation: its kernels beside their limits, whole rounds of SecAgg+ beside a plain protocol.

The limit of masking is the speed of the AES-GCM keystream and of an addition, measured in the same run on the same
chunks. Whole rounds run all clients and the server in one process, one thread, with a tenth of the clients gone after
they shared their secrets.
"""

from __future__ import annotations

import functools
import os
import resource
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks import plain_secagg, secagg_network
from benchmarks.harness import Figure, Limit, progress
from odp.crypto.secure_aggregation import keystream, masked, shamir
from odp.crypto.secure_aggregation.client import Client
from odp.crypto.secure_aggregation.parameters import Adversary, Threat, find
from odp.crypto.secure_aggregation.server import Server
from odp.crypto.secure_aggregation.session import Configuration
from odp.crypto.signing import SigningKey
from odp.v1 import secure_aggregation_pb2 as messages

# Seconds of a whole round, 10 % dropout, complete graph; and how much faster ours has to be.
_FRAMEWORK_SECONDS = {(20, 10**5): 2.9, (50, 10**5): 24.0, (20, 10**6): 4.5, (50, 10**6): 32.0}
_FRAMEWORK_RATIOS = {10**5: 20.0, 10**6: 8.0}
_DROPPED = 10  # one client of so many


def run(quick: bool) -> list[Figure]:
    """Masks, shares, whole rounds, and the server's work after a tenth of the clients dropped out."""
    length = 10**6
    limit = _mask_limit(4 * length)
    figures = []
    for neighbours in (20, 100):
        rate = _mask_rate(length, neighbours)
        figures.append(
            Figure(f"mask 1 M uint32, {neighbours} neighbours", rate / limit, "of keystream + add", ">= 0.7")
        )
    figures.append(Figure("keystream + add", limit / 1e9, "GB/s"))
    figures += _masked_mode(length)
    figures += _sharing()
    sizes = [(20, 10**5), (20, 10**6)] if quick else [(20, 10**5), (50, 10**5), (20, 10**6), (50, 10**6)]
    for clients, each in sizes:
        progress(f"secagg: a round of {clients} clients, {each:,} numbers")
        figures.append(_whole_round(clients, each))
    for clients, each in sizes:
        progress(f"secagg: a round of {clients} clients, {each:,} numbers over gRPC")
        figures.append(_network_round(clients, each))
    servers = [(100, 10**5)] if quick else [(100, 10**5), (100, 10**6), (1000, 10**5), (1000, 10**6)]
    for clients, each in servers:
        progress(f"secagg: unmasking for {clients} clients, {each:,} numbers")
        figures += _unmasking(clients, each)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return [*figures, Figure("peak memory", peak, "MiB", "<= 1024")]


def _best(call: Callable[[], object], times: int = 3) -> float:
    best = float("inf")
    for _ in range(times):
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
    return best


def _mask_limit(size: int) -> float:
    """Bytes per second of keystream made and added, one after the other, on resident chunks."""
    cipher, zeros = AESGCM(os.urandom(32)), bytes(keystream.CHUNK_BYTES)
    buffer = bytearray(keystream.CHUNK_BYTES + 16)
    stream = np.frombuffer(buffer, dtype=np.uint32, count=keystream.CHUNK_BYTES // 4)
    total = np.zeros_like(stream)
    chunks = 8 * -(-size // keystream.CHUNK_BYTES)

    def make() -> None:
        for chunk in range(chunks):
            cipher.encrypt_into(chunk.to_bytes(12, "big"), zeros, None, buffer)

    def add() -> None:
        for _ in range(chunks):
            np.add(total, stream, out=total)

    return chunks * keystream.CHUNK_BYTES / (_best(make, times=6) + _best(add, times=6))


def _mask_rate(length: int, neighbours: int) -> float:
    vector = np.zeros(length, dtype=np.uint32)
    seeds = [os.urandom(32) for _ in range(neighbours)]
    return (
        neighbours * vector.nbytes / _best(lambda: keystream.add_masks(vector, plus=seeds, info=b"benchmark"), times=12)
    )


def _masked_mode(length: int) -> list[Figure]:
    """What one contribution to a masked round costs each side, beyond what an unmasked one costs."""
    payload = np.random.default_rng(1).integers(-(2**16), 2**16, length).astype("<i4").tobytes()
    halves = [masked.mask(payload, info=b"benchmark") for _ in range(8)]
    vectors = [np.frombuffer(each.vector, dtype="<u4") for each in halves]
    total = np.zeros(length, dtype=np.uint32)

    def host() -> None:
        for vector in vectors:
            np.add(total, vector, out=total)

    def enclave() -> None:
        masked.MaskSum("sums", length, info=b"benchmark").add([each.secret for each in halves])

    count, name = len(halves), "masked, 1 M uint32"
    return [
        Figure(f"{name}: device", 1e3 * _best(lambda: masked.mask(payload, info=b"benchmark")), "ms"),
        Figure(f"{name}: enclave", 1e3 * _best(enclave) / count, "ms/device"),
        Figure(f"{name}: host", 1e3 * _best(host) / count, "ms/device"),
    ]


def _sharing() -> list[Figure]:
    points, threshold, secrets = range(1, 97), 67, [os.urandom(32) for _ in range(100)]
    shares = shamir.share(secrets, points=points, threshold=threshold)
    chosen = points[:threshold]
    return [
        Figure(
            "secrets shared (67 of 96)",
            len(secrets) / _best(lambda: shamir.share(secrets, points=points, threshold=threshold)),
            "/s",
        ),
        Figure(
            "secrets rebuilt (67 of 96)",
            len(secrets) / _best(lambda: [shamir.rebuild(chosen, each[:threshold]) for each in shares]),
            "/s",
        ),
    ]


def _configuration(clients: int, length: int, *, dropout: float, corrupt: float = 0.0) -> Configuration:
    config = messages.SecAggConfig(
        task_sha256=bytes(32), round=0, model_sha256=bytes(32), length=length, bits=32, bound=2**16, maximum=clients,
        minimum=max(3, clients // 2), corrupt=corrupt, dropout=dropout, lying_server=True, attempt=0,
    )  # fmt: skip
    return Configuration.open(config.SerializeToString())


def _whole_round(clients: int, length: int) -> Figure:
    vectors = np.random.default_rng(1).integers(-(2**16), 2**16, (clients, length))
    dropped = set(range(clients // _DROPPED))
    expected = vectors[len(dropped) :].sum(axis=0)
    residues = vectors.astype(np.uint32)
    threshold = clients // 2 + 1

    def plain() -> None:
        found = plain_secagg.whole_round(residues, dropped=dropped, threshold=threshold)
        _require_equal(found.view(np.int32).astype(np.int64), expected)

    ours = _best(lambda: _require_equal(_session(vectors, dropped), expected), times=2)
    peer = _best(plain, times=1)
    return Figure(
        f"round, {clients} clients x {length:.0e}", ours, "s", f"<= {peer!r}", Limit("plain numpy + cryptography", peer)
    )


def _network_round(clients: int, length: int) -> Figure:
    """The same over the loopback; the best-known Python framework's times were taken on a machine of this kind."""
    vectors = np.random.default_rng(1).integers(-(2**16), 2**16, (clients, length))
    ours = min(secagg_network.whole_round(vectors, set(range(clients // _DROPPED))) for _ in range(3))
    framework = _FRAMEWORK_SECONDS[clients, length]
    goal = framework / _FRAMEWORK_RATIOS[length]
    return Figure(
        f"round over gRPC, {clients} clients x {length:.0e}", ours, "s", f"<= {goal:.3g}",
        Limit("a Python framework (not in this run)", framework),
    )  # fmt: skip


def _session(vectors: npt.NDArray[np.int64], dropped: set[int]) -> npt.NDArray[np.int64]:
    """All clients and the server of one session over the complete graph."""
    clients, length = vectors.shape
    # Five in a hundred corrupt and a tenth dropped need the complete graph at these sizes, or nearly.
    configuration = _configuration(clients, length, dropout=0.1, corrupt=0.05)
    everybody = [Client(configuration, SigningKey.generate()) for _ in range(clients)]
    server = Server(configuration)
    for client in everybody:
        server.advertise(client.advert)
    adverts = server.close_adverts()
    for number, client in enumerate(everybody):
        server.reveal(number, client.reveal(adverts))
    reveals = server.close_reveals()
    for number, client in enumerate(everybody):
        server.share(number, client.share(reveals))
    inboxes = server.close_shares()
    here = [number for number in range(clients) if number not in dropped]
    for number in here:
        server.masked(number, everybody[number].mask(inboxes[number], vectors[number]))
    survivors = server.close_masked()
    for number in here:
        server.agree(number, everybody[number].agree(survivors))
    agreements = server.close_agreements()
    for number in here:
        server.unmask(number, everybody[number].unmask(agreements[number]))
    return server.finish()


def _unmasking(clients: int, length: int) -> list[Figure]:
    """The server's work after the vectors are in: rebuild a tenth's keys and everybody else's seeds, remove masks."""
    threat = Threat(adversary=Adversary.SEMI_HONEST, corrupt=0.1, dropout=0.1)
    parameters = find(clients=clients, threat=threat)
    dropped = clients // _DROPPED
    points = range(1, parameters.neighbours + 1)
    secrets = [os.urandom(32) for _ in range(clients)]
    shares = [shamir.share([secret], points=points, threshold=parameters.threshold)[0] for secret in secrets]
    chosen = points[: parameters.threshold]
    rebuild = _best(lambda: [shamir.rebuild(chosen, share[: parameters.threshold]) for share in shares], times=1)
    edges = dropped * round(parameters.neighbours * 0.9)
    seeds = [os.urandom(32) for _ in range(clients - dropped + edges)]
    vector = np.zeros(length, dtype=np.uint32)
    unmask = functools.partial(keystream.add_masks, vector, minus=seeds, info=b"benchmark")
    remove = _best(unmask, times=1)
    incoming = np.zeros(length, dtype=np.uint32)
    add = (clients - dropped) * _best(lambda: np.add(vector, incoming, out=vector))
    name = f"{clients} clients x {length:.0e}, k={parameters.neighbours}"
    goal = "<= 20" if (clients, length) == (1000, 10**6) else None
    return [
        Figure(f"server, {name}: rebuild secrets", rebuild, "core-s"),
        Figure(f"server, {name}: remove masks", remove, "core-s"),
        Figure(f"server, {name}: sum vectors", add, "core-s"),
        Figure(f"server, {name}: all three", rebuild + remove + add, "core-s", goal),
    ]


def _require_equal(found: npt.NDArray[np.int64], expected: npt.NDArray[np.int64]) -> None:
    if not np.array_equal(found, expected):
        raise ArithmeticError("the round gave another sum than the vectors'")
