"""Writes the known-answer vectors of this folder: ``python -m crypto.secure_aggregation.vectors.make`` in ``tests``.

Everything random is SHAKE-256 of a label, so the files are a function of this script and of the protocol. Where there
is an independent way to a number, it is taken here: masks by AES in counter mode, shares and secrets by whole-number
arithmetic, the order of the graph by sorting. ``test_vectors.py`` replays the files against the package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from odp.crypto.secure_aggregation.client import Client
from odp.crypto.secure_aggregation.server import Server
from odp.crypto.secure_aggregation.session import Configuration
from odp.crypto.signing import SigningKey
from odp.v1 import secure_aggregation_pb2 as messages

FOLDER = Path(__file__).parent
PRIME = 2**31 - 1
LIMBS, LIMB_BITS = 9, 29
CHUNK_BYTES = 128 * 1024


def stream(label: str) -> Callable[[int], bytes]:
    """Reads on in SHAKE-256 of ``label``: what a client of that label takes for random."""
    place = 0

    def read(count: int) -> bytes:
        nonlocal place
        place += count
        return hashlib.shake_256(label.encode()).digest(place)[place - count :]

    return read


def main() -> None:
    """Writes every file."""
    for name, value in everything().items():
        text = json.dumps(value, indent=1) + "\n"
        (FOLDER / f"{name}.json").write_text(text)


def everything() -> dict[str, Any]:
    """The content of each file, by its name."""
    return {
        "keystream": keystream_vectors(),
        "shamir": shamir_vectors(),
        "graph": graph_vectors(),
        "masked": masked_vectors(),
        "transcript": transcript(),
        "refused": refused(transcript()),
    }


# Masks


def mask(seed: bytes, info: bytes, length: int) -> bytes:
    """GCM's keystream: counter mode from nonce || 2, chunk by chunk."""
    key = HKDF(hashes.SHA256(), length=32, salt=None, info=info).derive(seed)
    made = b""
    for number in range(-(-length // CHUNK_BYTES)):
        counter = number.to_bytes(12, "big") + (2).to_bytes(4, "big")
        made += Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor().update(bytes(CHUNK_BYTES))
    return made[:length]


def keystream_vectors() -> dict[str, Any]:
    read = stream("keystream")
    cases = []
    for bits, length in ((32, 1), (32, 7), (32, 32768), (32, 32769), (32, 70_001), (64, 3), (64, 16_385)):
        seed, info = read(32), read(20)
        made = mask(seed, info, length * bits // 8)
        cases.append(
            {
                "seed": seed.hex(), "info": info.hex(), "bits": bits, "length": length, "first": made[:32].hex(),
                "last": made[-8:].hex(), "sha256": hashlib.sha256(made).hexdigest(),
            }
        )  # fmt: skip
    one = read(32)
    folded = bytes(left ^ right for left, right in zip(one[:16], one[16:], strict=True))
    return {
        "masks": cases,
        "refused_seeds": ["", "00" * 16, "00" * 31, "00" * 33],
        # Two seeds that any folding to 128 bits by exclusive or takes for one.
        "unequal": [{"seeds": [one.hex(), (folded + bytes(16)).hex()], "info": b"folded".hex()}],
    }


# Shares


def limbs(secret: bytes) -> list[int]:
    whole = int.from_bytes(secret, "little")
    return [whole >> (LIMB_BITS * place) & (2**LIMB_BITS - 1) for place in range(LIMBS)]


def shares_of(secret: bytes, points: list[int], threshold: int, random: bytes) -> list[bytes]:
    """Whole-number arithmetic; ``random`` holds 4 bytes for each coefficient above the constant ones."""
    drawn = [int.from_bytes(random[4 * place : 4 * place + 4], "little") & PRIME for place in range(len(random) // 4)]
    rows = [limbs(secret), *(drawn[LIMBS * row : LIMBS * (row + 1)] for row in range(threshold - 1))]
    assert all(each < PRIME for row in rows for each in row)
    return [
        b"".join(
            (sum(row[limb] * point**power for power, row in enumerate(rows)) % PRIME).to_bytes(4, "little")
            for limb in range(LIMBS)
        )
        for point in points
    ]


def shamir_vectors() -> dict[str, Any]:
    read = stream("shamir")
    cases: list[dict[str, Any]] = []
    for secret, points, threshold in (
        (bytes(32), [1, 2], 2),
        (b"\xff" * 32, [1, 2, 3], 2),
        (read(32), [5, 1, 9, 2_147_483_646], 3),
        (read(32), list(range(1, 13)), 7),
    ):
        random = read(4 * (threshold - 1) * LIMBS)
        shares = shares_of(secret, points, threshold, random)
        cases.append(
            {
                "secret": secret.hex(), "points": points, "threshold": threshold, "random": random.hex(),
                "shares": [share.hex() for share in shares],
            }
        )  # fmt: skip
    last = cases[-1]
    too_large = (PRIME).to_bytes(4, "little") + bytes(32)
    return {
        "shared": cases,
        "refused_shares": ["", "00" * 35, "00" * 37, too_large.hex(), "ff" * 36],
        "refused_points": [[], [0, 1], [1, 1], [-1, 2], [PRIME, 1]],
        # Below the threshold, of two secrets, and one bit wrong: no secret, or another one.
        "not_the_secret": [
            {"secret": last["secret"], "points": last["points"][:6], "shares": last["shares"][:6]},
            {
                "secret": last["secret"], "points": last["points"][:7],
                "shares": [cases[2]["shares"][0], *last["shares"][1:7]],
            },
            {
                "secret": last["secret"], "points": last["points"][:7],
                "shares": [_flipped(last["shares"][0]), *last["shares"][1:7]],
            },
        ],
    }  # fmt: skip


def _flipped(data: str) -> str:
    return f"{int(data[:2], 16) ^ 1:02x}{data[2:]}"


# Order


def graph_vectors() -> dict[str, Any]:
    read = stream("graph")
    cases = []
    for clients, neighbours in ((3, 2), (4, 3), (10, 4), (101, 22)):
        session = read(32)
        reveals = [read(32) for _ in range(clients)]
        commitments = [hashlib.sha256(b"odp/v1/secagg/commitment" + reveal).digest() for reveal in reveals]
        seed = hashlib.sha256(b"odp/v1/secagg/graph" + session + b"".join(reveals)).digest()
        key = hashlib.sha256(seed).digest()
        drawn = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(16 * clients))
        order = sorted(range(clients), key=lambda client: (drawn[16 * client : 16 * client + 16], client))
        places = {client: place for place, client in enumerate(order)}
        around = (
            range(1, clients)
            if neighbours == clients - 1
            else [step for step in range(-neighbours // 2, neighbours // 2 + 1) if step]
        )
        beside = [sorted(order[(places[client] + step) % clients] for step in around) for client in range(clients)]
        cases.append(
            {
                "session": session.hex(), "reveals": [reveal.hex() for reveal in reveals],
                "commitments": [commitment.hex() for commitment in commitments], "seed": seed.hex(), "order": order,
                "neighbours": neighbours, "neighbours_of": beside,
            }
        )  # fmt: skip
    return {
        "orders": cases,
        "refused_reveals": ["", "00" * 31, "00" * 33],
        "refused_neighbours": [{"clients": 10, "neighbours": each} for each in (0, 1, 3, 10, 12)],
    }


# Masked contributions to an enclave


def masked_vectors() -> dict[str, Any]:
    read = stream("masked")
    cases = []
    for round, length in ((0, 1), (1, 6), (2**32 - 1, 33)):
        task, seed = read(32), read(32)
        values = np.frombuffer(read(4 * length), "<i4") >> 8
        info = b"odp/v1/masked-vector" + task + round.to_bytes(4, "big")
        masks = np.frombuffer(mask(seed, info, 4 * length), "<u4").astype(np.int64)
        vector = ((values.astype(np.int64) + masks) % 2**32).astype("<u4").tobytes()
        digest = hashlib.sha256(vector).digest()
        named = hashlib.sha256(b"odp/v1/masked-set" + task + round.to_bytes(4, "big") + digest).hexdigest()
        cases.append(
            {
                "task_sha256": task.hex(), "round": round, "seed": seed.hex(), "values": values.tolist(),
                "vector": vector.hex(), "secret": (seed + digest).hex(), "set_sha256": named,
            }
        )  # fmt: skip
    return {"halves": cases, "refused_payloads": ["", "00", "0000000000"]}


# A whole session


CLIENTS = 6
GONE_BEFORE_MASKED = 4


def transcript() -> dict[str, Any]:
    """Six clients, of which number 4 vanishes after it shared: every message, in order, and the sum of the others."""
    config = messages.SecAggConfig(
        task_sha256=hashlib.sha256(b"task").digest(), round=2, model_sha256=hashlib.sha256(b"model").digest(), length=5,
        bits=32, bound=1000, maximum=50, minimum=3, corrupt=0.1, dropout=0.2, lying_server=True, attempt=0,
    ).SerializeToString(deterministic=True)  # fmt: skip
    configuration = Configuration.open(config)
    identities = [stream(f"identity {number}")(32) for number in range(CLIENTS)]
    clients = [
        Client(configuration, SigningKey.from_bytes(identity), random_bytes=stream(f"client {number}"))
        for number, identity in enumerate(identities)
    ]
    vectors = [
        [int.from_bytes(stream(f"vector {number}")(10)[2 * place :][:2], "big") % 2001 - 1000 for place in range(5)]
        for number in range(CLIENTS)
    ]
    server = Server(configuration)
    said: dict[str, Any] = {}

    def told(name: str, message: Any) -> Any:
        said[name] = message.SerializeToString(deterministic=True).hex()
        return message

    for number, client in enumerate(clients):
        server.advertise(told(f"advert {number}", client.advert))
    adverts = told("adverts", server.close_adverts())
    for number, client in enumerate(clients):
        server.reveal(number, told(f"reveal {number}", client.reveal(adverts)))
    reveals = told("reveals", server.close_reveals())
    for number, client in enumerate(clients):
        server.share(number, told(f"shares {number}", client.share(reveals)))
    inboxes = server.close_shares()
    here = [number for number in range(CLIENTS) if number != GONE_BEFORE_MASKED]
    for number in range(CLIENTS):
        told(f"inbox {number}", inboxes[number])
    for number in here:
        vector = np.array(vectors[number], dtype=np.int64)
        server.masked(number, told(f"masked {number}", clients[number].mask(inboxes[number], vector)))
    survivors = told("survivors", server.close_masked())
    for number in here:
        server.agree(number, told(f"agreement {number}", clients[number].agree(survivors)))
    agreements = server.close_agreements()
    for number in here:
        told(f"agreements {number}", agreements[number])
        server.unmask(number, told(f"unmask {number}", clients[number].unmask(agreements[number])))
    total = server.finish()
    expected = [sum(vectors[number][place] for number in here) for place in range(5)]
    assert total.tolist() == expected
    return {
        "config": config.hex(),
        "random": "client i reads SHAKE-256('client i'), its identity is SHAKE-256('identity i')",
        "identities": [identity.hex() for identity in identities], "vectors": vectors,
        "gone_before_masked": GONE_BEFORE_MASKED, "session": adverts_id(said).hex(),
        "neighbours": server.session.parameters.neighbours, "threshold": server.session.parameters.threshold,
        "messages": said, "sum": expected,
    }  # fmt: skip


def refused(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Messages of a lying server, each in the place of one that client 0 of the transcript was told."""
    said = told["messages"]

    def message(kind: Any, name: str) -> Any:
        return kind.FromString(bytes.fromhex(said[name]))

    def case(why: str, step: str, name: str, changed: Any, match: str) -> dict[str, Any]:
        data = changed.SerializeToString(deterministic=True).hex()
        return {"why": why, "client": 0, "step": step, "changed": {name: data}, "match": match}

    substituted = message(messages.SecAggAdverts, "adverts")
    substituted.adverts[1].mask_key = bytes.fromhex(said["advert 2"])[34:66]
    key = SigningKey.from_bytes(bytes.fromhex(told["identities"][1]))

    def advertised(mask_key: bytes) -> Any:
        """The list with another mask key of client 1, under its own signature."""
        changed = message(messages.SecAggAdverts, "adverts")
        one = changed.adverts[1]
        one.mask_key = mask_key
        signed = hashlib.sha256(changed.config).digest() + one.channel_key + one.mask_key + one.commitment
        one.signature = key.sign(b"odp/v1/secagg/advert", signed)
        return changed

    honest = bytes.fromhex(said["advert 2"])[70:102]
    assert honest == messages.SecAggAdvert.FromString(bytes.fromhex(said["advert 2"])).mask_key
    alias = honest[:31] + bytes([honest[31] | 0x80])
    twice = message(messages.SecAggAdverts, "adverts")
    twice.adverts.add().CopyFrom(twice.adverts[1])
    model = message(messages.SecAggAdverts, "adverts")
    config = messages.SecAggConfig.FromString(model.config)
    config.model_sha256 = hashlib.sha256(b"another model").digest()
    model.config = config.SerializeToString(deterministic=True)
    swapped = message(messages.SecAggReveals, "reveals")
    swapped.reveals[1], swapped.reveals[2] = swapped.reveals[2], swapped.reveals[1]
    missing = message(messages.SecAggReveals, "reveals")
    del missing.reveals[-1]
    other = message(messages.SecAggReveals, "reveals")
    other.session = bytes(32)
    replayed = message(messages.SecAggInbox, "inbox 0")
    replayed.sealed[:] = [*replayed.sealed[1:], replayed.sealed[0]]
    few = message(messages.SecAggInbox, "inbox 0")
    del few.senders[1:], few.sealed[1:]
    dead = message(messages.SecAggSurvivors, "survivors")
    dead.survivors = bytes([dead.survivors[0] & ~1])
    overlap = message(messages.SecAggSurvivors, "survivors")
    overlap.shared = bytes([overlap.shared[0] & ~2])
    alone = message(messages.SecAggSurvivors, "survivors")
    alone.survivors = b"\x01"
    story = message(messages.SecAggAgreements, "agreements 0")
    story.signatures[0] = story.signatures[1]
    silent = message(messages.SecAggAgreements, "agreements 0")
    del silent.signers[:], silent.signatures[:]
    return [
        case("substituted key", "reveal", "adverts", substituted, "refused"),
        case("point of low order", "reveal", "adverts", advertised(bytes(32)), "low order"),
        case("another's key with its highest bit set", "reveal", "adverts", advertised(alias), "canonical"),
        case("number beyond the field", "reveal", "adverts", advertised(b"\xef" + b"\xff" * 30 + b"\x7f"), "canonical"),
        case("another's key", "reveal", "adverts", advertised(honest), "repeats a key"),
        case("one client twice", "reveal", "adverts", twice, "repeats a key"),
        case("another model", "reveal", "adverts", model, "another configuration"),
        case("reveals swapped", "shares", "reveals", swapped, "does not belong to its commitment"),
        case("reveal missing", "shares", "reveals", missing, "left some out"),
        case("another session", "shares", "reveals", other, "another session"),
        case("shares of other clients", "masked", "inbox 0", replayed, "do not open"),
        case("too few shares", "masked", "inbox 0", few, "fewer than the threshold"),
        case("told that it is dead", "agreement", "survivors", dead, "lists this client as dropped"),
        case("survivor that never shared", "agreement", "survivors", overlap, "never shared"),
        case("isolated", "agreement", "survivors", alone, "fewer than the minimum"),
        case("told another story", "unmask", "agreements 0", story, "told of other survivors"),
        case("too few agreements", "unmask", "agreements 0", silent, "fewer than the threshold"),
    ]


def adverts_id(said: dict[str, Any]) -> bytes:
    """The session's id, from the messages alone."""
    adverts = messages.SecAggAdverts.FromString(bytes.fromhex(said["adverts"]))
    total = hashlib.sha256(b"odp/v1/secagg/session" + hashlib.sha256(adverts.config).digest())
    for one in adverts.adverts:
        total.update(one.identity + one.channel_key + one.mask_key + one.commitment + one.signature)
    return total.digest()


if __name__ == "__main__":
    main()
