"""Signed notes: a text, and the signature lines of its signers.

A note is a text that ends with a newline, an empty line, and lines ``— name base64(key id || signature)``. A line
counts for the key with that name and id; lines by keys that the reader does not know are ignored: anybody may add one.

One Ed25519 key makes two kinds of lines, with different ids and different signed bytes:

- ``NOTE``: over the text;
- ``COSIGNATURE``: over ``cosignature/v1``, a time and the text, with the time in the line. The signer states that the
  checkpoint was the newest that it knew at that time.

No text may begin with the words ``cosignature/v1``, so a signature of one kind never passes for the other.

Keys of notes sign notes and nothing else: their messages do not begin with a domain of ``odp.crypto.domains``.

Source: C2SP signed-note v1.0.0 and tlog-cosignature v1.0.0.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import hashlib
import re
from collections.abc import Iterable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from odp import _validate
from odp.crypto.log_reasons import LogReason, refused
from odp.crypto.public_keys import KEY_BYTES, require_ed25519
from odp.errors import ConfigurationError

LARGEST_NOTE = 16 * 1024
_MOST_LINES = 64
_SIGNATURE_BYTES = 64
_TIME_BYTES = 8
_LARGEST_TIME = 2**40
_DASH = "—"
_COSIGNED = b"cosignature/v1\n"
_PRIVATE = "PRIVATE+KEY"
# The format allows any letters but spaces and plus; this subset suffices for a name that people compare by eye.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


class Kind(enum.IntEnum):
    """The signature types of the formats named above."""

    NOTE = 1
    COSIGNATURE = 4


@dataclasses.dataclass(frozen=True)
class VerifierKey:
    """A public key: what a reader pins. Its text form is ``name+id+base64(kind || key)``.

    Raises:
        ConfigurationError: the name or the key is malformed.
    """

    name: str
    kind: Kind
    public: bytes

    def __post_init__(self) -> None:
        check_name(self.name)
        require_ed25519(self.public, name=f"the key of {self.name!r}")

    @property
    def key_id(self) -> bytes:
        """Four bytes that depend on name, kind and key."""
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.public).digest()[:4]

    @property
    def text(self) -> str:
        """The text form."""
        encoded = base64.b64encode(bytes([self.kind]) + self.public).decode()
        return f"{self.name}+{self.key_id.hex()}+{encoded}"

    @classmethod
    def from_text(cls, text: str) -> VerifierKey:
        """The key of a text form. Raises ConfigurationError."""
        name, _, rest = text.partition("+")
        key_id, _, encoded = rest.partition("+")
        data = _key_material(encoded, name)
        if data[0] not in tuple(Kind):
            raise ConfigurationError(f"the key of {name!r} has a signature type that this version does not know")
        key = cls(name, Kind(data[0]), data[1:])
        if key.text != text or key.key_id.hex() != key_id:
            raise ConfigurationError(f"the key of {name!r} does not match its id: the copy is damaged")
        return key

    def of_kind(self, kind: Kind) -> VerifierKey:
        """The same key for lines of another kind."""
        return VerifierKey(self.name, kind, self.public)

    def verifies(self, line: SignatureLine, text: bytes) -> bool:
        """Whether ``line``, which names this key, is its signature of ``text``."""
        signed, signature = text, line.signature
        if self.kind is Kind.COSIGNATURE:
            if line.time is None:
                return False
            signed, signature = _cosigned(text, line.time), signature[_TIME_BYTES:]
        if len(signature) != _SIGNATURE_BYTES:
            return False
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, signed)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclasses.dataclass(frozen=True)
class SignatureLine:
    """One line below a text; nothing about it is verified."""

    name: str
    key_id: bytes
    signature: bytes

    @property
    def time(self) -> int | None:
        """The time in a cosignature, seconds since the epoch; None if it does not have the length of one."""
        if len(self.signature) != _TIME_BYTES + _SIGNATURE_BYTES:
            return None
        return int.from_bytes(self.signature[:_TIME_BYTES], "big")

    def is_by(self, key: VerifierKey) -> bool:
        """Whether the line names ``key`` as its signer."""
        return (self.name, self.key_id) == (key.name, key.key_id)

    @property
    def text(self) -> str:
        """The line, with its newline."""
        return f"{_DASH} {self.name} {base64.b64encode(self.key_id + self.signature).decode()}\n"


@dataclasses.dataclass(frozen=True)
class Note:
    """A text and its signature lines; nothing about them is verified."""

    body: bytes
    lines: tuple[SignatureLine, ...]

    @classmethod
    def parse(cls, data: bytes) -> Note:
        """Takes a note apart; one note has one spelling.

        Raises:
            TransparencyError: ``malformed``.
        """
        if len(data) > LARGEST_NOTE:
            raise refused(LogReason.MALFORMED, f"a signed note of {len(data)} bytes; the limit is {LARGEST_NOTE}")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise refused(LogReason.MALFORMED, "a signed note that is not UTF-8") from None
        body, separator, signatures = text.rpartition("\n\n")
        if not separator or not signatures.endswith("\n"):
            raise refused(LogReason.MALFORMED, "a signed note without signatures")
        lines = signatures[:-1].split("\n")
        if len(lines) > _MOST_LINES:
            raise refused(LogReason.MALFORMED, f"a signed note with more than {_MOST_LINES} signatures")
        note = cls(f"{body}\n".encode(), tuple(parse_line(f"{line}\n") for line in lines))
        if note.encode() != data:
            raise refused(LogReason.MALFORMED, "a signed note in another spelling than its own")
        return note

    def encode(self) -> bytes:
        """The bytes of the note."""
        return self.body + b"\n" + "".join(line.text for line in self.lines).encode()

    def with_lines(self, lines: Iterable[SignatureLine]) -> Note:
        """The note with further lines; a line replaces one by the same key."""
        added = {(line.name, line.key_id): line for line in lines}
        remaining = [line for line in self.lines if (line.name, line.key_id) not in added]
        return Note(self.body, (*remaining, *added.values()))


def parse_line(text: str) -> SignatureLine:
    """One signature line, with its newline.

    Raises:
        TransparencyError: ``malformed``.
    """
    dash, _, rest = text.partition(" ")
    name, _, encoded = rest.removesuffix("\n").partition(" ")
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if dash != _DASH or not _NAME.fullmatch(name) or not 4 < len(data) <= 4096:
        raise refused(LogReason.MALFORMED, "a signature line that is not `— name base64`")
    line = SignatureLine(name, data[:4], data[4:])
    if line.text != text:
        raise refused(LogReason.MALFORMED, "a signature line that is not in its one spelling")
    return line


class NoteKey:
    """A private key of notes, with its name. Its ``repr`` shows nothing of it."""

    __slots__ = ("_key", "name")

    def __init__(self, name: str, key: Ed25519PrivateKey) -> None:
        check_name(name)
        self.name = name
        self._key = key

    @classmethod
    def generate(cls, name: str) -> NoteKey:
        """A new key from the operating system's randomness."""
        return cls(name, Ed25519PrivateKey.generate())

    @classmethod
    def from_text(cls, text: str) -> NoteKey:
        """The key that ``to_text`` wrote. Raises ConfigurationError."""
        body = text.strip()
        if not body.startswith(f"{_PRIVATE}+"):
            raise ConfigurationError(f"Expected a private key of signed notes: one line that starts with {_PRIVATE}+")
        name, _, rest = body.removeprefix(f"{_PRIVATE}+").partition("+")
        data = _key_material(rest.partition("+")[2], name)
        key = cls(name, Ed25519PrivateKey.from_private_bytes(data[1:]))
        if key.to_text().strip() != body:
            raise ConfigurationError(f"the private key of {name!r} does not match its id: the copy is damaged")
        return key

    def to_text(self) -> str:
        """``PRIVATE+KEY+name+id+base64(kind || key)`` and a newline: keep it where only its owner reads."""
        encoded = base64.b64encode(bytes([Kind.NOTE]) + self._key.private_bytes_raw()).decode()
        return f"{_PRIVATE}+{self.name}+{self.public(Kind.NOTE).key_id.hex()}+{encoded}\n"

    def public(self, kind: Kind) -> VerifierKey:
        """The public key, which readers pin."""
        return VerifierKey(self.name, kind, self._key.public_key().public_bytes_raw())

    def sign(self, text: bytes) -> SignatureLine:
        """A ``NOTE`` line."""
        _check_text(text)
        return SignatureLine(self.name, self.public(Kind.NOTE).key_id, self._key.sign(text))

    def cosign(self, text: bytes, *, now: float) -> SignatureLine:
        """A ``COSIGNATURE`` line with the time ``now`` (seconds since the epoch)."""
        _check_text(text)
        _validate.within(low=0, high=_LARGEST_TIME, now=now)
        time = int(now)
        signature = time.to_bytes(_TIME_BYTES, "big") + self._key.sign(_cosigned(text, time))
        return SignatureLine(self.name, self.public(Kind.COSIGNATURE).key_id, signature)


def check_name(name: str) -> None:
    """Raises ConfigurationError unless ``name`` can name a key or a log."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.encode() + b"\n" == _COSIGNED:
        raise ConfigurationError(
            f"Expected name={name!r} to be 1 to 128 characters of A-Z, a-z, 0-9, '.', '_', ':', '/', '-', such as "
            "example.com/log"
        )


def _cosigned(text: bytes, time: int) -> bytes:
    return _COSIGNED + f"time {time}\n".encode() + text


def _check_text(text: bytes) -> None:
    if not text.endswith(b"\n") or b"\n\n" in text or text.startswith((b"\n", _COSIGNED)):
        raise ConfigurationError("Expected the text of a note to be non-empty lines that each end with a newline")


def _key_material(encoded: str, name: str) -> bytes:
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != 1 + KEY_BYTES:
        raise ConfigurationError(f"Expected the key {name[:128]!r} as name+id+base64 of 33 bytes")
    return data
