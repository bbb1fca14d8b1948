"""The byte strings of odp.v1, as the proto files spell them."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from odp.crypto import domains
from odp.errors import ConfigurationError

TASK, MODEL, SECRET, POLICY = (bytes([value]) * 32 for value in (1, 2, 3, 4))


def test_the_built_strings_are_those_of_the_proto_files() -> None:
    info = domains.contribution_info(TASK, 258, MODEL, POLICY)
    assert info == b"odp/v1/contribution" + TASK + b"\x00\x00\x01\x02" + MODEL + POLICY
    assert domains.select_info(MODEL) == b"odp/v1/select" + MODEL
    assert domains.selected_aad(MODEL) == b"odp/v1/selected" + MODEL
    message = b"odp/v1/contribution-id" + TASK + b"\x00\x00\x00\x07"
    assert domains.contribution_id(SECRET, TASK, 7) == hmac.new(SECRET, message, hashlib.sha256).digest()
    message = b"odp/v1/pseudonym" + TASK
    assert domains.pseudonym(SECRET, TASK) == hmac.new(SECRET, message, hashlib.sha256).digest()


def test_every_domain_that_a_proto_file_names_is_a_constant_here() -> None:
    folder = Path(__file__).resolve().parents[2] / "protos" / "odp" / "v1"
    named = {
        text.encode() for path in folder.glob("*.proto") for text in re.findall(r'"(odp/v1/[a-z-]+)"', path.read_text())
    }
    known = {value for value in vars(domains).values() if isinstance(value, bytes)}
    assert named
    assert named <= known


def test_identifiers_differ_by_device_task_and_round() -> None:
    identifiers = {
        domains.contribution_id(secret, task, round)
        for secret in (SECRET, MODEL)
        for task in (TASK, MODEL)
        for round in (0, 1, 2**32 - 1)
    }
    assert len(identifiers) == 12
    assert domains.pseudonym(SECRET, TASK) not in identifiers


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_hash_or_secret_of_a_wrong_length_is_refused(length: int) -> None:
    wrong = bytes(length)
    calls: list[Callable[[], bytes]] = [
        lambda: domains.contribution_info(wrong, 0, MODEL, POLICY),
        lambda: domains.contribution_info(TASK, 0, wrong, POLICY),
        lambda: domains.contribution_info(TASK, 0, MODEL, wrong),
        lambda: domains.select_info(wrong),
        lambda: domains.selected_aad(wrong),
        lambda: domains.contribution_id(wrong, TASK, 0),
        lambda: domains.contribution_id(SECRET, wrong, 0),
        lambda: domains.pseudonym(wrong, TASK),
        lambda: domains.pseudonym(SECRET, wrong),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match=f"32 bytes, got {length}"):
            call()


@pytest.mark.parametrize("round", [-1, 2**32])
def test_a_round_that_four_bytes_cannot_hold_is_refused(round: int) -> None:
    with pytest.raises(ConfigurationError, match="round"):
        domains.contribution_info(TASK, round, MODEL, POLICY)
