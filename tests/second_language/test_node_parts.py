"""The parts of a device in another language: the same bytes and answers, without a network or a package."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from google.protobuf.json_format import MessageToDict
from own_rows import own_rows
from second_language.node import (
    a_task,
    node_parts,
)
from trust.enclave import test_chain as chains
from trust.enclave.rig import DIGESTS, NONCE, NOW, POLICIES, RELAXED, Rig, log, parts, registers, sign_raw
from trust.enclave.test_verifier import SIGNED_ATTACKS
from trust.enclave.test_verifier_event_log import LOG_ATTACKS

import odp
from odp.algorithms.dpam.client import DpamClient
from odp.algorithms.dpam.server import DpamServer
from odp.algorithms.factorization.slices import ROWS
from odp.algorithms.registry import algorithm_for
from odp.algorithms.seam import LocalData, NoisyTensors
from odp.crypto import DecryptionError, HpkeKey, domains, seal
from odp.errors import AttestationError
from odp.protocol.terms import UserLevelDP
from odp.protocol.wire.model import ModelVersion, Slices
from odp.trust.enclave import chain
from odp.trust.enclave.chain import TCB_COMPONENTS
from odp.trust.enclave.evidence import Reason
from odp.trust.enclave.policy import EnclavePolicy
from odp.trust.enclave.reference_values import ReferenceValues, Validity
from odp.trust.enclave.verifier import verify_evidence
from odp.v1 import common_pb2


def test_what_python_seals_node_opens_and_what_node_seals_python_opens() -> None:
    key = HpkeKey.generate()
    cases = [(bytes(length), b"info" * count) for length, count in ((0, 0), (1, 1), (3000, 20))]
    sealed = node_parts(
        *(
            {"part": "seal", "key": key.public.hex(), "plaintext": text.hex(), "info": info.hex()}
            for text, info in cases
        )
    )
    opened = node_parts(
        *(
            {
                "part": "open", "key": key.to_bytes().hex(), "info": info.hex(),
                "sealed": seal(key.public, text, info).hex(),
            }
            for text, info in cases
        )
    )  # fmt: skip
    for (text, info), by_node, plaintext in zip(cases, sealed, opened, strict=True):
        assert key.open(bytes.fromhex(by_node), info) == text
        assert bytes.fromhex(plaintext) == text
        with pytest.raises(DecryptionError):
            key.open(bytes.fromhex(by_node), info + b"x")


def test_node_opens_nothing_that_was_changed_or_sealed_in_another_context() -> None:
    key = HpkeKey.generate()
    good = seal(key.public, b"rows", b"context")
    changed = [bytes([*good[:place], good[place] ^ 1, *good[place + 1 :]]) for place in (0, 31, 32, len(good) - 1)]
    requests = [{"part": "open", "key": key.to_bytes().hex(), "sealed": good.hex(), "info": b"other".hex()}]
    requests += [
        {"part": "open", "key": key.to_bytes().hex(), "sealed": data.hex(), "info": b"context".hex()}
        for data in (*changed, good[:47], good[:-1], bytes(60), b"")
    ]
    assert node_parts(*requests) == [None] * len(requests)


def test_identifiers_and_contexts_are_the_same_bytes() -> None:
    secret, task, model, policy = (hashlib.sha256(name).digest() for name in (b"secret", b"task", b"model", b"policy"))
    rounds = (0, 1, 256, 2**32 - 1)
    answers = node_parts(
        *(
            {
                "part": "names",
                "secret": secret.hex(),
                "task": task.hex(),
                "model": model.hex(),
                "round": number,
                "policy": policy.hex(),
            }
            for number in rounds
        )
    )
    for number, answer in zip(rounds, answers, strict=True):
        assert answer == {
            "info": domains.contribution_info(task, number, model, policy).hex(),
            "id": domains.contribution_id(secret, task, number).hex(),
            "pseudonym": domains.pseudonym(secret, task).hex(),
        }


def evidence_cases(rig: Rig, other: Rig) -> Iterator[tuple[ReferenceValues, dict[str, Any]]]:
    """Genuine evidence, and attacks of every kind: (reference values, other arguments of ``verify_evidence``)."""

    def case(pinned: ReferenceValues = rig.pinned, **changes: Any) -> tuple[ReferenceValues, dict[str, Any]]:
        given = {"policy": POLICIES["aggregator"], "nonce": NONCE, "role": "aggregator", "now": NOW}
        given |= changes
        return pinned, {"token": rig.token(), "event_log": log(given["policy"]), **given}

    def pinning(**changes: Any) -> ReferenceValues:
        return dataclasses.replace(rig.pinned, **changes)

    yield case()
    yield case(token=rig.token(role="distributor"), role="distributor", policy=POLICIES["distributor"])
    yield case(token=rig.sign({**rig.claims(), "a claim of the future": [1, {"}": '"'}]}))
    yield case(token=rig.sign({**rig.claims(), "dbgstat": "enabled"}), pinned=pinning(allow_debug=True))
    debugged = log(POLICIES["aggregator"], debug="on")
    claims = {**rig.claims(), "dbgstat": "enabled", "registers": registers(debugged)}
    yield case(token=rig.sign(claims), event_log=debugged, pinned=pinning(allow_debug=True))
    for _, event_log in LOG_ATTACKS:
        yield case(event_log=event_log)
        with contextlib.suppress(ValueError, KeyError):
            yield case(token=rig.sign({**rig.claims(), "registers": registers(event_log)}), event_log=event_log)
    restricted = log(POLICIES["aggregator"], "sandbox held seccomp", "sandbox refused x")
    token = rig.sign({**rig.claims(), "registers": registers(restricted)})
    for required in ((), ("seccomp",), ("x",), ("seccomp", "namespace-user")):
        yield case(token=token, event_log=restricted, pinned=pinning(required_restrictions=required))
    image = DIGESTS["aggregator"]
    for changes in (
        {"withdrawn_images": (image,)}, {"withdrawn_images": (DIGESTS["distributor"],)},
        {"image_validity": {image: Validity(not_after=NOW)}}, {"image_validity": {image: Validity(not_before=NOW + 1)}},
        {"image_validity": {image: Validity(not_before=NOW, not_after=NOW + 5)}},
        *({"minimum_tcb": {name: version}} for name in TCB_COMPONENTS for version in (1, 2)),
    ):  # fmt: skip
        yield case(pinned=pinning(**changes))
    for one in (rig, other):
        for certificate in one.issued.certificates:
            serial = f"{x509.load_der_x509_certificate(certificate).serial_number:x}"
            yield case(pinned=pinning(revoked_certificates=(serial,)))
        chip = chain.verify(one.issued.certificates, roots=one.pinned.roots, now=NOW)
        yield case(pinned=pinning(revoked_chips=(chip.chip_id.hex(),)))
    for _, changes, _ in SIGNED_ATTACKS:
        yield case(token=rig.sign({**rig.claims(), **changes}))
    for name in rig.claims():
        yield case(token=rig.sign({key: value for key, value in rig.claims().items() if key != name}))
        yield case(token=rig.sign({**rig.claims(), name: 1.5}))
    yield case(nonce=bytes(32))
    for policy in (RELAXED, b"", POLICIES["aggregator"] + b" ", POLICIES["distributor"]):
        yield case(policy=policy)
    yield case(token=rig.token(policy=RELAXED), policy=RELAXED)
    yield case(token=rig.token(policy=RELAXED))
    yield case(token=rig.token(role="distributor"))
    for lies in ({}, {"emulated": False}, {"emulated": False, "hwmodel": "GCP_AMD_SEV"}):
        yield case(token=rig.sign({**rig.claims(), **lies}), pinned=pinning(allow_emulated=False))
    yield case(pinned=pinning(image_digests={"aggregator": (DIGESTS["distributor"],)}))
    yield case(pinned=pinning(max_age_seconds=10), now=NOW + 10)
    for name, nothing in (("roots", ()), ("image_digests", {}), ("policy_sha256", {})):
        yield case(pinned=pinning(**{name: nothing}))
    for seconds in (-61, 3599, 3600, 8 * 365 * 24 * 3600, -48 * 3600):
        yield case(now=NOW + seconds)

    # Chains of the test's own making: the sound ones get as far as the signature, which is by another chip.
    wrong: list[tuple[int, dict[str, Any]]] = chains.test_each_constraint_of_each_certificate_is_enforced.pytestmark[
        0
    ].args[1]
    for place, change in [(0, {}), (2, {"extra": chains.CRITICAL, "extra_critical": False}), *wrong]:
        specs = [chains.ARK, chains.ASK, chains.CHIP]
        specs[place] = dataclasses.replace(specs[place], **change)
        made = chains.build(*specs)
        sent = [base64.b64encode(chains.der(certificate)).decode() for certificate in reversed(made)]
        token = rig.sign(rig.claims(), {**parts(rig.token())[0], "x5c": sent})
        yield case(token=token, pinned=pinning(roots=(chains.pem(made[0]),)))
        yield case(token=token)
    for _, named in (*chains.WITHOUT, *chains.WRONG):
        made = chains.build(chains.ARK, chains.ASK, dataclasses.replace(chains.CHIP, chip=named))
        sent = [base64.b64encode(chains.der(certificate)).decode() for certificate in reversed(made)]
        token = rig.sign(rig.claims(), {**parts(rig.token())[0], "x5c": sent})
        yield case(token=token, pinned=pinning(roots=(chains.pem(made[0]),)))

    for allowed in (False, True):
        testing = EnclavePolicy(role="aggregator", test_noise_seed=7).to_bytes()
        listed = {"aggregator": (hashlib.sha256(testing).hexdigest(),)}
        pinned = pinning(policy_sha256=listed, allow_test_noise=allowed)
        yield case(token=rig.token(policy=testing), policy=testing, pinned=pinned)

    # Forms.
    head, body, signature = rig.token().split(".")
    yield case(token=f"{head}.{body}.{other.token().split('.')[2]}")
    yield case(token=other.token())
    for token in ("", "..", f"{head}.{body}", f"{head}.{body}.{signature}=", f"{head}.{body}.{signature[:-4]}"):
        yield case(token=token)
    header, claims = parts(rig.token())
    twice = json.dumps(claims)[:-1] + ', "emulated": false}'
    yield case(token=rig.sign_text(json.dumps(header), twice))
    chip, ask, root = header["x5c"]
    foreign = parts(other.token())[0]["x5c"]
    mixed = [[chip, ask], [chip], [ask, ask, root], [root, ask, root], [chip, root, root], [chip, foreign[1], root]]
    for x5c in (*mixed, [foreign[0], ask, root], [chip, ask, foreign[2]], [chip, ask, root[:-8]], [chip, ask, 7]):
        yield case(token=rig.sign(rig.claims(), {**header, "x5c": x5c}))
    for changes in ({"alg": "ES256"}, {"alg": "none"}, {"kid": "1"}):
        yield case(token=rig.sign(rig.claims(), {**header, **changes}))


def python_answer(pinned: ReferenceValues, given: dict[str, Any]) -> dict[str, object]:
    """What ``parts.mjs`` has to answer."""
    try:
        found = verify_evidence(reference_values=pinned, **given)
    except AttestationError as error:
        return {"reason": error.reason}
    return {"reason": None, "keys": [found.hpke_key.hex(), found.signing_key.hex()], "expires": found.expires}


class TextRig(Rig):
    """A rig that signs any text."""

    def sign_text(self, header: str, claims: str) -> str:
        return sign_raw(header.encode(), claims.encode(), self.issued.key)


def test_both_verifiers_give_the_same_answer_to_genuine_evidence_and_to_every_kind_of_attack(tmp_path: Path) -> None:
    """The written order of the checks decides which reason is given, so agreement of reasons is agreement of orders."""
    cases = list(evidence_cases(TextRig(tmp_path / "one"), TextRig(tmp_path / "other")))
    answers = node_parts(
        *(
            {
                **given, "part": "evidence", "values": dataclasses.asdict(pinned), "nonce": given["nonce"].hex(),
                "policy": given["policy"].hex(), "event_log": given["event_log"].hex(),
            }
            for pinned, given in cases
        )
    )  # fmt: skip
    for number, (case, answer) in enumerate(zip(cases, answers, strict=True)):
        assert answer == python_answer(*case), f"case {number}"
    # Charter and round key are compared with the assignment's, and the ledger with what a device remembers.
    others = {Reason.WRONG_CHARTER, Reason.WRONG_LEDGER, Reason.WRONG_ROUND_KEY}
    assert {answer["reason"] for answer in answers} == {None, *Reason} - others, "every reason was met"


def model_at(definition: common_pb2.TaskDefinition, round: int, rng: np.random.Generator) -> ModelVersion:
    """The model of ``round`` after releases of random numbers."""
    algorithm = algorithm_for(definition)
    server = DpamServer(definition)
    state = server.start()
    for number in range(round):
        tensors = {release.name: 20.0 * rng.random(release.shape) for release in algorithm.query(number).releases}
        state = server.step(state, NoisyTensors(number, tensors, contributions=100))
    return server.broadcast(state)


def request_for(
    definition: common_pb2.TaskDefinition, round: int, seed: int, data: LocalData, slices: Slices
) -> dict[str, object]:
    """Asks ``parts.mjs`` for the payload of one device."""
    return {
        "part": "payload",
        "definition": MessageToDict(
            definition, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        ),
        "round": round,
        "seed": str(seed),
        "items": data[ROWS].items.tolist(),
        "values": data[ROWS].values.tolist(),
        "keys": slices.keys.tolist(),
        "rows": slices.rows.tolist(),
        "ridges": slices.dense["globals"][0].tolist(),
    }


@pytest.mark.parametrize("weighting", ["adaptive", "uniform"])
def test_the_payloads_of_every_round_are_the_same_bytes(weighting: str) -> None:
    """Devices of 0 to 40 items, in a task that takes 12 of them and gives rows of 20."""
    training = odp.DPAM(steps=2, weighting=weighting, slices_per_device=20, row_clip=0.4)
    task = dataclasses.replace(a_task(), model=odp.MatrixFactorization(items=50, rank=3), training=training)
    task = dataclasses.replace(task, privacy=UserLevelDP(epsilon=8, delta=1e-5, max_items_per_user=12))
    definition = task.definition()
    rng = np.random.default_rng(5)
    requests: list[dict[str, object]] = []
    expected = []
    for round in range(4):
        model = model_at(definition, round, rng)
        for count in (0, 1, 5, 12, 13, 40):
            items = np.sort(rng.choice(50, count, replace=False)).astype(np.int64)
            data = own_rows(items, rng.integers(1, 6, count).astype(np.float64))
            seed = int(rng.integers(2**63)) * 2 + 1
            client = DpamClient(definition)
            keys = client.keys(data, round=round, seed=seed)
            slices = Slices(round, keys, model.keyed.rows[keys], model.dense)
            payload, _ = client.contribute(slices, data, round=round, seed=seed)
            expected.append({"keys": keys.tolist(), "payload": payload.hex()})
            requests.append(request_for(definition, round, seed, data, slices))
    assert node_parts(*requests) == expected


def test_values_that_equal_a_rounding_limit_in_exact_arithmetic_become_the_same_integers() -> None:
    """Targets half-way between two integers, and weights of equal counts, which rounding may put below an integer."""
    training = odp.DPAM(bias_target_clip=1.0, centre=3.0, slices_per_device=16)
    privacy = UserLevelDP(epsilon=8, delta=1e-5, max_items_per_user=16)
    definition = dataclasses.replace(a_task(), privacy=privacy, training=training).definition()
    client = DpamClient(definition)
    items = np.arange(16, dtype=np.int64)
    halves = np.array([1, 3, 5, 7, 509, 1021, 1023, 2047]) / 1024.0
    # The values are symmetric around the centre, so that the user's bias is exactly 0.
    data = own_rows(items, 3.0 + np.concatenate((halves, -halves)))
    requests: list[dict[str, object]] = []
    expected = []
    for count in range(1, 65):
        rows = np.tile(np.array([count, 0.0, 1.0], dtype=np.float32), (16, 1))
        dense = {"globals": np.array([[1.0, 5.0]], dtype=np.float32)}
        slices = Slices(1, items, rows, dense)
        payload, _ = client.contribute(slices, data, round=1, seed=7)
        expected.append({"keys": items.tolist(), "payload": payload.hex()})
        requests.append(request_for(definition, 1, 7, data, slices))
    assert node_parts(*requests) == expected
    assert np.frombuffer(payload, "<u2", offset=64, count=16).tolist() == [256] * 16
