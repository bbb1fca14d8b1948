"""The file of an image: a manifest in text, then the bytes of each part.

::

    odp-enclave-image 1
    base extension zlib 0 41208 <SHA-256, hex>
    base library libc.so.6 41208 1926256 ..
    code module odp.errors ..

One line per part: its component, kind, name, offset, length and SHA-256; sorted. An empty line ends the manifest. The
measurement of an enclave is SHA-384 of the manifest, which fixes every byte of the parts.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives import hashes

from odp.errors import ConfigurationError

#: ``base``: interpreter, libraries of the system and of others; ``code``: the enclave's own modules.
COMPONENTS: tuple[str, ...] = ("base", "code")
KINDS: tuple[str, ...] = (
    "dynamic-loader", "entry", "extension", "library", "module", "package", "program", "start", "versions",
)  # fmt: skip
DIGEST_PREFIX = "sha384:"

#: Kinds that share one space of names: an import finds one of them.
_IMPORTED: tuple[str, ...] = ("extension", "module", "package")

_FIRST_LINE = "odp-enclave-image 1"
_LINE = re.compile(r"([a-z]+) ([a-z-]+) ([A-Za-z0-9_.+-]{1,200}) (\d{1,10}) (\d{1,10}) ([0-9a-f]{64})")
_LARGEST_MANIFEST = 1 << 20
_LARGEST_IMAGE = 1 << 30
_ADVICE = "build it again with `odp enclave build`"


class Blob(NamedTuple):
    """What is written as a part."""

    component: str
    kind: str
    name: str
    data: bytes


class Part(NamedTuple):
    """One line of a manifest; ``offset`` and ``length`` are in bytes, from the end of the manifest."""

    component: str
    kind: str
    name: str
    offset: int
    length: int
    sha256: str


@dataclass(frozen=True)
class Image:
    """The manifest of an image."""

    parts: tuple[Part, ...]
    manifest: bytes = field(repr=False)

    @classmethod
    def parse(cls, manifest: bytes) -> Image:
        """The image of a whole manifest, with its empty line.

        Raises:
            ConfigurationError: it is none, its parts are not in order and one behind the other, or two share a name.
        """
        if not manifest.startswith(_FIRST_LINE.encode() + b"\n") or not manifest.endswith(b"\n\n"):
            raise ConfigurationError(f"it is no image of an enclave: {_ADVICE}")
        parts: list[Part] = []
        names: set[tuple[str, str]] = set()
        end = 0
        for number, line in enumerate(manifest[:-2].decode("ascii", "replace").split("\n")[1:], start=2):
            match = _LINE.fullmatch(line)
            if match is None or match[1] not in COMPONENTS or match[2] not in KINDS:
                raise ConfigurationError(f"line {number} of its manifest is no part of an image: {_ADVICE}")
            part = Part(match[1], match[2], match[3], int(match[4]), int(match[5]), match[6])
            if part.offset != end or (parts and parts[-1][:3] >= part[:3]):
                raise ConfigurationError(f"line {number} of its manifest is out of order: {_ADVICE}")
            name = ("import" if part.kind in _IMPORTED else part.kind, part.name)
            if name in names:
                raise ConfigurationError(f"line {number} of its manifest has a second {part.name}: {_ADVICE}")
            names.add(name)
            parts.append(part)
            end += part.length
        return cls(tuple(parts), manifest)

    @property
    def digest(self) -> str:
        """The measurement, ``"sha384:<96 hex digits>"``."""
        return DIGEST_PREFIX + hashlib.sha384(self.manifest).hexdigest()

    @property
    def components(self) -> dict[str, str]:
        """Component -> ``"sha384:<96 hex digits>"`` over its parts' names and hashes, wherever they lie in the file."""
        return {
            name: DIGEST_PREFIX
            + hashlib.sha384(
                "".join(f"{p.kind} {p.name} {p.sha256}\n" for p in self.parts if p.component == name).encode()
            ).hexdigest()
            for name in COMPONENTS
        }

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.manifest) + sum(part.length for part in self.parts)

    @property
    def entry(self) -> str:
        """Import name of the module that it starts with.

        Raises:
            ConfigurationError: it has none, or several.
        """
        return self.only("entry").name

    def require_entry(self, entry: str) -> None:
        """Returns if it starts with the module ``entry``. Raises ConfigurationError where not."""
        if self.entry != entry:
            raise ConfigurationError(f"it is an image of {self.entry}, not of {entry}: {_ADVICE}")

    def of_kind(self, *kinds: str) -> list[Part]:
        """The parts of some kinds, in order."""
        return [part for part in self.parts if part.kind in kinds]

    def only(self, kind: str) -> Part:
        """The one part of a kind. Raises ConfigurationError where there is another number of them."""
        parts = self.of_kind(kind)
        if len(parts) != 1:
            raise ConfigurationError(f"it has {len(parts)} parts of kind {kind}, not one: {_ADVICE}")
        return parts[0]


def written(blobs: Iterable[Blob]) -> Iterator[bytes]:
    """The bytes of the file of an image, in pieces."""
    ordered = sorted(blobs, key=lambda blob: blob[:3])
    lines, offset = [_FIRST_LINE], 0
    for component, kind, name, data in ordered:
        lines.append(f"{component} {kind} {name} {offset} {len(data)} {_sha256(data)}")
        offset += len(data)
    yield ("\n".join(lines) + "\n\n").encode("ascii")
    for blob in ordered:
        yield blob.data


class ImageFile:
    """An open file of an image, which may change at any time: what is read is checked, and not the file.

    Args:
        descriptor: of the file, open for reading; stays the caller's.

    Raises:
        ConfigurationError: it is no image.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        head = os.pread(descriptor, _LARGEST_MANIFEST, 0)
        if (end := head.find(b"\n\n")) < 0:
            raise ConfigurationError(f"it is no image of an enclave: {_ADVICE}")
        self.image = Image.parse(head[: end + 2])
        if self.image.size > _LARGEST_IMAGE:
            raise ConfigurationError(f"it lists {self.image.size} bytes, more than an image may have: {_ADVICE}")
        if os.fstat(descriptor).st_size != self.image.size:
            raise ConfigurationError(f"its length is not what its manifest lists: {_ADVICE}")

    def read(self, part: Part) -> bytes:
        """The bytes of a part, which are those that the manifest lists. Raises ConfigurationError where not."""
        data = bytearray()
        while len(data) < part.length:
            piece = os.pread(self._descriptor, part.length - len(data), self._start(part) + len(data))
            if not piece:
                break
            data += piece
        self._check(part, data)
        return bytes(data)

    def copy(self, part: Part, target: int) -> None:
        """Copies a part to the start of the empty file with the descriptor ``target``, without a check."""
        done = 0
        while done < part.length:
            copied = os.sendfile(target, self._descriptor, self._start(part) + done, part.length - done)
            if not copied:
                break
            done += copied

    def check_copy(self, part: Part, target: int) -> None:
        """Returns if a file that nobody can write any more is a part. Raises ConfigurationError where not."""
        if os.fstat(target).st_size != part.length:
            raise self._other(part)
        if part.length == 0:  # nothing can be mapped
            self._check(part, b"")
            return
        with mmap.mmap(target, part.length, prot=mmap.PROT_READ) as data:
            self._check(part, data)

    def _start(self, part: Part) -> int:
        return len(self.image.manifest) + part.offset

    def _check(self, part: Part, data: bytes | bytearray | mmap.mmap) -> None:
        if _sha256(data) != part.sha256:
            raise self._other(part)

    def _other(self, part: Part) -> ConfigurationError:
        return ConfigurationError(f"its {part.kind} {part.name} is not the one that its manifest lists: {_ADVICE}")


def open_image(path: Path) -> tuple[int, ImageFile]:
    """The open descriptor of an image's file, for the caller to close, and the file.

    Raises:
        ConfigurationError: it cannot be read, or is no image.
    """
    try:
        # Nobody may ever write into what is no file.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigurationError(f"cannot read the image {path}: {(error.strerror or 'error').lower()}") from None
    try:
        return descriptor, ImageFile(descriptor)
    except ConfigurationError as error:
        os.close(descriptor)
        raise ConfigurationError(f"{path} cannot be used as an image: {error}") from None
    except OSError as error:
        os.close(descriptor)
        raise ConfigurationError(f"cannot read the image {path}: {(error.strerror or 'error').lower()}") from None


def _sha256(data: bytes | bytearray | mmap.mmap) -> str:
    # An image has no OpenSSL of the system, and Python's own hash takes five times as long.
    digest = hashes.Hash(hashes.SHA256())
    digest.update(memoryview(data))
    return digest.finalize().hex()
