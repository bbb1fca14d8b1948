"""Signed notes: the known answers of the format's own examples, one spelling, and nothing accepted besides."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from odp.crypto.note import Kind, Note, NoteKey, VerifierKey, parse_line
from odp.errors import ConfigurationError, TransparencyError

# From the documentation of golang.org/x/mod/sumdb/note.
EXAMPLE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
).encode()
EXAMPLE_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
# From C2SP tlog-cosignature.
COSIGNED = (
    "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "— example.com/behind-the-sofa "
    "Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
    "— witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+"
    "mbIUBkBIfZ+qnA==\n"
).encode()
TEXT = b"example.com/log\n5\nabc\n"


def test_the_formats_own_example_verifies_under_its_key() -> None:
    note, key = Note.parse(EXAMPLE), VerifierKey.from_text(EXAMPLE_KEY)
    assert key.kind is Kind.NOTE
    assert key.text == EXAMPLE_KEY
    (line,) = note.lines
    assert line.is_by(key)
    assert key.verifies(line, note.body)
    assert not key.verifies(line, note.body + b"x\n")
    assert note.encode() == EXAMPLE


def test_the_example_of_cosignatures_is_read_with_its_time() -> None:
    note = Note.parse(COSIGNED)
    assert [line.name for line in note.lines] == ["example.com/behind-the-sofa", "witness.example.com/w1"]
    assert note.lines[1].time == 1679315147
    assert note.lines[0].time is None
    assert note.encode() == COSIGNED


def test_a_line_counts_for_its_own_kind_key_and_text_only() -> None:
    key, other = NoteKey.generate("example.com/log"), NoteKey.generate("example.com/log")
    signed, cosigned = key.sign(TEXT), key.cosign(TEXT, now=1_700_000_000.9)
    assert cosigned.time == 1_700_000_000
    note, timed = key.public(Kind.NOTE), key.public(Kind.COSIGNATURE)
    assert note.verifies(signed, TEXT)
    assert timed.verifies(cosigned, TEXT)
    assert note.key_id != timed.key_id
    for verifier, line in ((note, cosigned), (timed, signed), (other.public(Kind.NOTE), signed)):
        assert not line.is_by(verifier)
        assert not verifier.verifies(line, TEXT)
    moved = parse_line(cosigned.text)
    later = type(moved)(moved.name, moved.key_id, (1_700_000_001).to_bytes(8, "big") + moved.signature[8:])
    assert not timed.verifies(later, TEXT), "the time is signed"


def test_keys_come_back_from_their_text_and_are_not_shown() -> None:
    key = NoteKey.generate("example.com/log")
    again = NoteKey.from_text(key.to_text())
    assert again.public(Kind.NOTE) == key.public(Kind.NOTE)
    assert key.to_text().split("+")[-1].strip() not in repr(key)
    public = key.public(Kind.COSIGNATURE)
    assert VerifierKey.from_text(public.text) == public


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.com",
        "example.com+00000000+" + EXAMPLE_KEY.split("+")[2],
        EXAMPLE_KEY.replace("PeterNeumann", "Other"),
        EXAMPLE_KEY[:-1],
        EXAMPLE_KEY + "\n",
        EXAMPLE_KEY.replace("+ARpc", "+CRpc"),
        "name with space+c74f20a3+" + EXAMPLE_KEY.split("+")[2],
    ],
)
def test_a_key_that_was_copied_wrongly_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        VerifierKey.from_text(text)
    with pytest.raises(ConfigurationError):
        NoteKey.from_text(f"PRIVATE+KEY+{text}")


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\n", "cosignature/v1", "é", "x" * 129])
def test_a_name_that_could_be_taken_for_something_else_names_no_key(name: str) -> None:
    with pytest.raises(ConfigurationError):
        NoteKey.generate(name)


@pytest.mark.parametrize("text", [b"", b"no newline", b"a\n\nb\n", b"\na\n", b"cosignature/v1\ntime 1\nx\n"])
def test_a_text_that_could_be_taken_for_something_else_is_not_signed(text: bytes) -> None:
    key = NoteKey.generate("example.com/log")
    with pytest.raises(ConfigurationError):
        key.sign(text)
    with pytest.raises(ConfigurationError):
        key.cosign(text, now=1.0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text\n",
        b"text\n\n",
        EXAMPLE[:-1],
        EXAMPLE + b"\n",
        EXAMPLE.replace(b"\xe2\x80\x94", b"-"),
        EXAMPLE.replace(b"x08go", b"x 08go"),
        EXAMPLE.replace(b"AM=\n", b"AN=\n"),
        EXAMPLE.replace(b"\xe2\x80\x94 P", b"\xe2\x80\x94  P"),
        b"\xff" + EXAMPLE,
        b"x" * 20_000 + EXAMPLE,
        EXAMPLE + EXAMPLE.split(b"\n\n")[1] * 80,
    ],
)
def test_what_is_no_note_or_another_spelling_of_one_is_refused(data: bytes) -> None:
    with pytest.raises(TransparencyError, match="malformed"):
        Note.parse(data)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400) | st.builds(lambda at, value: _replaced(at, value), st.integers(0), st.integers(0, 255)))
def test_any_bytes_are_a_note_in_its_one_spelling_or_refused(data: bytes) -> None:
    try:
        note = Note.parse(data)
    except TransparencyError:
        return
    assert note.encode() == data


def _replaced(at: int, value: int) -> bytes:
    data = bytearray(COSIGNED)
    data[at % len(data)] = value
    return bytes(data)


def test_a_new_line_by_a_key_replaces_its_old_one() -> None:
    key, witness = NoteKey.generate("example.com/log"), NoteKey.generate("example.com/witness")
    note = Note(TEXT, (key.sign(TEXT), witness.cosign(TEXT, now=1)))
    again = note.with_lines([witness.cosign(TEXT, now=2)])
    assert [(line.name, line.time) for line in again.lines] == [("example.com/log", None), ("example.com/witness", 2)]
