"""Checkpoints: whose signature counts, how many witnesses, how old."""

from __future__ import annotations

import pytest

from odp.crypto.note import Kind, Note, NoteKey
from odp.errors import ConfigurationError, TransparencyError
from odp.trust.enclave.log_policy import LogPolicy
from odp.trust.log.checkpoint import Checkpoint, check_age, sign_checkpoint, verify_checkpoint

NOW = 1_795_000_000.0
LOG = NoteKey.generate("example.com/log")
WITNESSES = [NoteKey.generate(f"example.com/w{number}") for number in range(3)]
TREE = Checkpoint("example.com/log", 7, bytes(range(32)))


def policy(**changes: object) -> LogPolicy:
    values = {
        "log_keys": (LOG.public(Kind.NOTE).text,),
        "endorser_keys": (),
        "witness_keys": tuple(witness.public(Kind.COSIGNATURE).text for witness in WITNESSES),
    }
    return LogPolicy(**{**values, **changes})  # type: ignore[arg-type]


def note(*cosigned: tuple[int, float], key: NoteKey = LOG, tree: Checkpoint = TREE) -> bytes:
    signed = sign_checkpoint(tree, key, now=NOW)
    return signed.with_lines([WITNESSES[place].cosign(tree.body, now=time) for place, time in cosigned]).encode()


def test_a_signed_checkpoint_comes_back_with_its_time() -> None:
    verified = verify_checkpoint(note(), policy())
    assert (verified.checkpoint, verified.witnesses, verified.time) == (TREE, (), int(NOW))
    assert Checkpoint.from_body(TREE.body) == TREE
    assert TREE.body == b"example.com/log\n7\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"


def test_a_quorum_is_as_old_as_its_oldest_needed_cosignature() -> None:
    cosigned = note((0, NOW - 10), (1, NOW - 500), (2, NOW - 30))
    for quorum, age in ((1, 10), (2, 30), (3, 500)):
        verified = verify_checkpoint(cosigned, policy(quorum=quorum))
        assert verified.time == NOW - age
        assert verified.witnesses == ("example.com/w0", "example.com/w1", "example.com/w2")


def test_lines_of_strangers_are_ignored_but_by_an_auditor() -> None:
    stranger = NoteKey.generate("example.com/stranger")
    data = Note.parse(note()).with_lines([stranger.cosign(TREE.body, now=NOW)]).encode()
    assert verify_checkpoint(data, policy()).checkpoint == TREE
    with pytest.raises(TransparencyError, match="not pinned") as caught:
        verify_checkpoint(data, policy(), strict=True)
    assert caught.value.reason == "bad_signature"


def test_a_key_that_replaces_another_is_accepted_while_both_are_pinned() -> None:
    newer = NoteKey.generate("example.com/log")
    both = policy(log_keys=(LOG.public(Kind.NOTE).text, newer.public(Kind.NOTE).text))
    assert verify_checkpoint(note(key=newer), both).time == int(NOW)
    assert verify_checkpoint(note(), both).time == int(NOW)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (note(key=NoteKey.generate("example.com/log")), "wrong_log_key"),
        (note(key=NoteKey.generate("example.com/other"), tree=Checkpoint("example.com/other", 7, bytes(32))),
         "wrong_origin"),
        (note().replace(b"\n7\n", b"\n8\n"), "bad_signature"),
        (b"not a note", "malformed"),
    ],
)  # fmt: skip
def test_a_checkpoint_of_somebody_else_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(TransparencyError) as caught:
        verify_checkpoint(data, policy())
    assert caught.value.reason == reason


def test_a_cosignature_of_another_tree_spoils_the_checkpoint() -> None:
    other = Checkpoint("example.com/log", 7, bytes(32))
    line = WITNESSES[0].cosign(other.body, now=NOW)
    data = Note.parse(note()).with_lines([line]).encode()
    with pytest.raises(TransparencyError) as caught:
        verify_checkpoint(data, policy())
    assert caught.value.reason == "bad_signature"


def test_one_witness_does_not_count_twice() -> None:
    lines = Note.parse(note((0, NOW))).lines
    doubled = Note(TREE.body, (*lines, lines[-1])).encode()
    with pytest.raises(TransparencyError):
        verify_checkpoint(doubled, policy(quorum=2))
    with pytest.raises(ConfigurationError, match="distinct"):
        policy(witness_keys=(WITNESSES[0].public(Kind.COSIGNATURE).text,) * 2)


@pytest.mark.parametrize(
    ("time", "reason"),
    [(NOW - 86_401, "stale"), (NOW + 61, "not_yet_valid"), (NOW - 86_399, None), (NOW + 59, None)],
)
def test_the_age_of_a_checkpoint_is_limited(time: float, reason: str | None) -> None:
    verified = verify_checkpoint(note((0, time)), policy(quorum=1))
    if reason is None:
        check_age(verified, policy(quorum=1), now=NOW)
        return
    with pytest.raises(TransparencyError) as caught:
        check_age(verified, policy(quorum=1), now=NOW)
    assert caught.value.reason == reason


def test_a_checkpoint_that_states_no_time_is_stale() -> None:
    data = Note(TREE.body, (LOG.sign(TREE.body),)).encode()
    with pytest.raises(TransparencyError, match="stale"):
        check_age(verify_checkpoint(data, policy()), policy(), now=NOW)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"example.com/log\n7\n",
        TREE.body + b"extension\n",
        TREE.body.replace(b"\n7\n", b"\n07\n"),
        TREE.body.replace(b"\n7\n", b"\n-7\n"),
        TREE.body.replace(b"\n7\n", b"\n1" + b"0" * 15 + b"\n"),
        TREE.body.replace(b"\n7\n", b"\n" + str(2**48 + 1).encode() + b"\n"),
        TREE.body.replace(b"example.com/log", b"example com"),
        TREE.body.replace(b"AAEC", b"AAE"),
        TREE.body[:-1],
        TREE.body.replace(b"8=\n", b"9=\n"),
    ],
)
def test_a_body_that_is_not_three_lines_in_their_one_spelling_is_refused(body: bytes) -> None:
    with pytest.raises(TransparencyError, match="malformed"):
        Checkpoint.from_body(body)


def test_a_log_signs_its_own_origin_only() -> None:
    with pytest.raises(ConfigurationError, match="origin"):
        sign_checkpoint(Checkpoint("example.com/other", 1, bytes(32)), LOG, now=NOW)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_keys": ()}, "at least one"),
        ({"log_keys": "x"}, "list of strings"),
        ({"quorum": 4}, "quorum"),
        ({"max_age_seconds": 0}, "max_age_seconds"),
        ({"endorser_keys": ("xyz",)}, "64 hex digits"),
        ({"log_keys": (WITNESSES[0].public(Kind.COSIGNATURE).text,)}, "type 1"),
        ({"witness_keys": (LOG.public(Kind.NOTE).text,)}, "type 4"),
        ({"log_keys": (LOG.public(Kind.NOTE).text, WITNESSES[0].public(Kind.NOTE).text)}, "one name"),
    ],
)
def test_pins_that_cannot_work_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        policy(**changes)


def test_pins_come_back_from_json_and_a_misspelt_one_is_named() -> None:
    values = {"log_keys": [LOG.public(Kind.NOTE).text], "endorser_keys": ["ab" * 32], "max_age_seconds": 60.0}
    assert LogPolicy.from_json(values) == policy(witness_keys=(), endorser_keys=("ab" * 32,), max_age_seconds=60.0)
    with pytest.raises(ConfigurationError, match="did you mean 'quorum'"):
        LogPolicy.from_json({**values, "quorun": 1})
    with pytest.raises(ConfigurationError, match="Missing key 'endorser_keys'"):
        LogPolicy.from_json({"log_keys": values["log_keys"]})
