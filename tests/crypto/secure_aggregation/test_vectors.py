"""The known answers of ``vectors/``, replayed: what another implementation has to give, and what it has to refuse."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crypto.secure_aggregation.vectors import make
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from odp.crypto import domains
from odp.crypto.secure_aggregation import graph, shamir
from odp.crypto.secure_aggregation.client import Client
from odp.crypto.secure_aggregation.keystream import add_masks
from odp.crypto.secure_aggregation.masked import mask, set_sha256
from odp.crypto.secure_aggregation.server import Server
from odp.crypto.secure_aggregation.session import Configuration
from odp.crypto.signing import SigningKey
from odp.errors import ConfigurationError, OdpError, PrivacyError
from odp.v1 import secure_aggregation_pb2 as messages

FOLDER = Path(__file__).parent / "vectors"


def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def once(data: bytes) -> Callable[[int], bytes]:
    """Gives ``data`` as random bytes, in one piece."""

    def give(count: int) -> bytes:
        assert count == len(data)
        return data

    return give


def test_the_files_are_what_their_script_writes() -> None:
    for name, value in make.everything().items():
        assert json.loads(json.dumps(value)) == read(name), f"run {make.__file__} where the protocol changed on purpose"
    assert {path.stem for path in FOLDER.glob("*.json")} == set(make.everything())


def test_masks() -> None:
    vectors = read("keystream")
    for case in vectors["masks"]:
        vector = np.zeros(case["length"], dtype=np.uint32 if case["bits"] == 32 else np.uint64)
        add_masks(vector, plus=[bytes.fromhex(case["seed"])], info=bytes.fromhex(case["info"]))
        made = vector.astype(vector.dtype.newbyteorder("<")).tobytes()
        assert made[:32].hex() == case["first"]
        assert made[-8:].hex() == case["last"]
        assert hashlib.sha256(made).hexdigest() == case["sha256"]
    for case in vectors["unequal"]:
        masked = [np.zeros(8, dtype=np.uint32) for _ in case["seeds"]]
        for vector, seed in zip(masked, case["seeds"], strict=True):
            add_masks(vector, plus=[bytes.fromhex(seed)], info=bytes.fromhex(case["info"]))
        assert not np.array_equal(masked[0], masked[1])


@pytest.mark.parametrize("seed", read("keystream")["refused_seeds"])
def test_seeds_that_are_refused(seed: str) -> None:
    with pytest.raises(ConfigurationError):
        add_masks(np.zeros(1, dtype=np.uint32), plus=[bytes.fromhex(seed)], info=b"")


@pytest.mark.parametrize("case", read("shamir")["shared"], ids=lambda case: f"{case['threshold']}")
def test_shares(case: dict[str, Any]) -> None:
    secret, threshold, points = bytes.fromhex(case["secret"]), case["threshold"], case["points"]
    random = once(bytes.fromhex(case["random"]))
    (shares,) = shamir.share([secret], points=points, threshold=threshold, random_bytes=random)
    assert [shamir.to_bytes(share).hex() for share in shares] == case["shares"]
    chosen = list(range(len(points)))[-threshold:]
    given = np.stack([shamir.from_bytes(bytes.fromhex(case["shares"][place])) for place in chosen])
    assert shamir.rebuild([points[place] for place in chosen], given) == secret


def test_shares_that_are_refused_or_give_no_secret() -> None:
    vectors = read("shamir")
    for data in vectors["refused_shares"]:
        with pytest.raises(ConfigurationError):
            shamir.from_bytes(bytes.fromhex(data))
    for points in vectors["refused_points"]:
        with pytest.raises(ConfigurationError):
            shamir.share([bytes(32)], points=points, threshold=2)
    for case in vectors["not_the_secret"]:
        given = np.stack([shamir.from_bytes(bytes.fromhex(share)) for share in case["shares"]])
        try:
            found = shamir.rebuild(case["points"], given).hex()
        except PrivacyError:
            continue
        assert found != case["secret"]


def test_orders() -> None:
    for case in read("graph")["orders"]:
        reveals = [bytes.fromhex(reveal) for reveal in case["reveals"]]
        commitments = [graph.commitment(reveal) for reveal in reveals]
        assert [each.hex() for each in commitments] == case["commitments"]
        seed = graph.graph_seed(bytes.fromhex(case["session"]), commitments, reveals)
        assert seed.hex() == case["seed"]
        order = graph.order(len(reveals), seed)
        assert order.tolist() == case["order"]
        edges = graph.edges(order=order, neighbours=case["neighbours"])
        assert [edges[client] for client in range(len(reveals))] == case["neighbours_of"]
        with pytest.raises(PrivacyError):
            graph.graph_seed(bytes.fromhex(case["session"]), commitments, [*reveals[1:], reveals[0]])


def test_reveals_and_numbers_of_neighbours_that_are_refused() -> None:
    vectors = read("graph")
    for reveal in vectors["refused_reveals"]:
        with pytest.raises(ConfigurationError):
            graph.commitment(bytes.fromhex(reveal))
    for case in vectors["refused_neighbours"]:
        with pytest.raises(ConfigurationError):
            graph.edges(order=np.arange(case["clients"]), neighbours=case["neighbours"])


def test_masked_halves() -> None:
    vectors = read("masked")
    for case in vectors["halves"]:
        task, round = bytes.fromhex(case["task_sha256"]), case["round"]
        halves = mask(
            np.array(case["values"], dtype="<i4").tobytes(),
            info=domains.masked_vector_info(task, round),
            random_bytes=once(bytes.fromhex(case["seed"])),
        )
        assert (halves.vector.hex(), halves.secret.hex()) == (case["vector"], case["secret"])
        assert set_sha256(task, round, [halves.secret[32:]]).hex() == case["set_sha256"]
    for payload in vectors["refused_payloads"]:
        with pytest.raises(ConfigurationError):
            mask(bytes.fromhex(payload), info=b"")


def _message(kind: Any, data: str) -> Any:
    return kind.FromString(bytes.fromhex(data))


class Replay:
    """A client of the transcript, taken as far as a test wants; what it says is compared with what was said."""

    def __init__(self, number: int) -> None:
        self.told = read("transcript")
        self.number = number
        self.said = self.told["messages"]
        self.client = Client(
            Configuration.open(bytes.fromhex(self.told["config"])),
            SigningKey.from_bytes(bytes.fromhex(self.told["identities"][number])),
            random_bytes=make.stream(f"client {number}"),
        )
        self.steps: list[tuple[str, Callable[[], Any]]] = [
            ("reveal", lambda: self.client.reveal(self.given(messages.SecAggAdverts, "adverts"))),
            ("shares", lambda: self.client.share(self.given(messages.SecAggReveals, "reveals"))),
            (
                "masked",
                lambda: self.client.mask(self.given(messages.SecAggInbox, f"inbox {number}"), self.vector),
            ),
            ("agreement", lambda: self.client.agree(self.given(messages.SecAggSurvivors, "survivors"))),
            ("unmask", lambda: self.client.unmask(self.given(messages.SecAggAgreements, f"agreements {number}"))),
        ]

    @property
    def vector(self) -> np.ndarray:
        return np.array(self.told["vectors"][self.number], dtype=np.int64)

    def given(self, kind: Any, name: str) -> Any:
        return _message(kind, self.said[name])

    def until(self, step: str) -> Replay:
        for name, answer in self.steps:
            if name == step:
                break
            answer()
        return self


@pytest.mark.parametrize("number", range(make.CLIENTS))
def test_every_client_of_the_transcript_says_what_it_said(number: int) -> None:
    replay = Replay(number)
    assert replay.client.advert.SerializeToString(deterministic=True).hex() == replay.said[f"advert {number}"]
    for name, answer in replay.steps:
        if name == "masked" and number == make.GONE_BEFORE_MASKED:
            break
        assert answer().SerializeToString(deterministic=True).hex() == replay.said[f"{name} {number}"], name


def test_the_server_of_the_transcript_makes_the_sum_of_its_messages() -> None:
    told = read("transcript")
    said = told["messages"]
    server = Server(Configuration.open(bytes.fromhex(told["config"])))
    for number in range(make.CLIENTS):
        server.advertise(_message(messages.SecAggAdvert, said[f"advert {number}"]))
    server.close_adverts()
    assert server.session.id.hex() == told["session"]
    assert make.adverts_id(said).hex() == told["session"]
    for number in range(make.CLIENTS):
        server.reveal(number, _message(messages.SecAggReveal, said[f"reveal {number}"]))
    server.close_reveals()
    for number in range(make.CLIENTS):
        server.share(number, _message(messages.SecAggShares, said[f"shares {number}"]))
    server.close_shares()
    here = [number for number in range(make.CLIENTS) if number != told["gone_before_masked"]]
    for number in here:
        server.masked(number, _message(messages.SecAggMasked, said[f"masked {number}"]))
    assert server.close_masked().SerializeToString(deterministic=True).hex() == said["survivors"]
    for number in here:
        server.agree(number, _message(messages.SecAggAgreement, said[f"agreement {number}"]))
    server.close_agreements()
    for number in here:
        server.unmask(number, _message(messages.SecAggUnmask, said[f"unmask {number}"]))
    assert server.finish().tolist() == told["sum"]


def test_the_masked_vectors_of_the_transcript_by_another_way() -> None:
    """X25519 of the library, masks in counter mode, whole numbers: none of the package's own code."""
    told = read("transcript")
    session = bytes.fromhex(told["session"])
    secrets = []
    for number in range(make.CLIENTS):
        random = make.stream(f"client {number}")
        secrets.append([random(32) for _ in range(3)][1:])  # the channel's key is not needed
    keys = [X25519PrivateKey.from_private_bytes(mask_key) for mask_key, _ in secrets]

    def masks(seed: bytes) -> list[int]:
        return np.frombuffer(make.mask(seed, session, 20), "<u4").tolist()

    for number in range(make.CLIENTS):
        if number == told["gone_before_masked"]:
            continue
        inbox = _message(messages.SecAggInbox, told["messages"][f"inbox {number}"])
        total = [sum(pair) for pair in zip(told["vectors"][number], masks(secrets[number][1]), strict=True)]
        for other in inbox.senders:
            sign = 1 if other > number else -1
            low, high = sorted((number, other))
            ends = b"".join(one.to_bytes(4, "big") for one in (low, high))
            publics = b"".join(keys[one].public_key().public_bytes_raw() for one in (low, high))
            info = b"odp/v1/secagg/pair-mask" + session + ends + publics
            shared = keys[number].exchange(keys[other].public_key())
            pair = masks(HKDF(hashes.SHA256(), length=32, salt=None, info=info).derive(shared))
            total = [one + sign * two for one, two in zip(total, pair, strict=True)]
        said = _message(messages.SecAggMasked, told["messages"][f"masked {number}"]).vector
        assert np.frombuffer(said, "<u4").tolist() == [each % 2**32 for each in total]


def test_the_shares_of_the_transcript_rebuild_its_secrets_by_another_way() -> None:
    """Lagrange in whole numbers: survivors' seeds, and the mask key of the one that vanished."""
    told = read("transcript")
    points: dict[int, list[tuple[int, bytes]]] = {}
    for number in range(make.CLIENTS):
        if number == told["gone_before_masked"]:
            continue
        unmask = _message(messages.SecAggUnmask, told["messages"][f"unmask {number}"])
        for neighbour, share in zip(unmask.neighbours, unmask.shares, strict=True):
            points.setdefault(neighbour, []).append((number + 1, share))
    assert len(points) == make.CLIENTS
    for neighbour, shares in points.items():
        random = make.stream(f"client {neighbour}")
        _, mask_key, self_seed = (random(32) for _ in range(3))
        expected = mask_key if neighbour == told["gone_before_masked"] else self_seed
        assert _rebuilt(shares[: told["threshold"]]) == expected


def _rebuilt(shares: list[tuple[int, bytes]]) -> bytes:
    whole = 0
    for limb in range(make.LIMBS):
        value = 0
        for point, share in shares:
            weight = 1
            for other, _ in shares:
                if other != point:
                    weight = weight * other * pow(other - point, -1, make.PRIME) % make.PRIME
            value += weight * int.from_bytes(share[4 * limb : 4 * limb + 4], "little")
        whole |= value % make.PRIME << (make.LIMB_BITS * limb)
    return whole.to_bytes(32, "little")


@pytest.mark.parametrize("case", read("refused"), ids=lambda case: case["why"])
def test_what_the_clients_of_the_transcript_refuse(case: dict[str, Any]) -> None:
    replay = Replay(case["client"]).until(case["step"])
    replay.said = {**replay.said, **case["changed"]}
    with pytest.raises(OdpError, match=case["match"]):
        dict(replay.steps)[case["step"]]()
