"""What an image is made of, for people who decide whether to trust it; and what two images differ in."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

from odp.enclave.image.parts import ImageFile, Part

_MODULES, _NATIVE = ("module", "package"), ("dynamic-loader", "extension", "library", "program")


@dataclass(frozen=True)
class Listing:
    """An image in figures.

    Attributes:
        entry: import name of the module that it starts with.
        digest: the measurement.
        components: see ``odp.enclave.image.parts``.
        versions: ``"numpy 2.1.0"``, .. of the interpreter and the libraries.
        code, base: module -> lines up to its last statement.
        native: name -> bytes of machine code that is copied from files.
        hashes: (kind, name) of each part -> SHA-256, hex.
    """

    entry: str
    digest: str
    components: dict[str, str]
    versions: tuple[str, ...]
    code: dict[str, int]
    base: dict[str, int]
    native: dict[str, int]
    hashes: dict[tuple[str, str], str]


@dataclass(frozen=True)
class Difference:
    """Parts, as ``"module odp.errors"``, that only one of two images has, or that differ in their bytes."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


def listing(file: ImageFile) -> Listing:
    """The listing of an image, each part checked. Raises ConfigurationError where one is not as the manifest says."""
    image = file.image
    code, base = (
        {part.name: _lines(file, part) for part in image.of_kind(*_MODULES) if part.component == component}
        for component in ("code", "base")
    )
    return Listing(
        image.entry,
        image.digest,
        image.components,
        tuple(file.read(image.only("versions")).decode().splitlines()),
        code,
        base,
        {part.name: part.length for part in image.of_kind(*_NATIVE)},
        {(part.kind, part.name): part.sha256 for part in image.parts},
    )


def difference(before: Listing, after: Listing) -> Difference:
    """What changed from one image to another."""
    old, new = before.hashes, after.hashes
    return Difference(
        *(
            tuple(" ".join(part) for part in sorted(parts))
            for parts in (
                new.keys() - old.keys(),
                old.keys() - new.keys(),
                {part for part in old.keys() & new.keys() if old[part] != new[part]},
            )
        )
    )


def _lines(file: ImageFile, part: Part) -> int:
    code = marshal.loads(file.read(part))  # read and never run
    return max(
        (line for part_code in _codes(code) for _, _, line in part_code.co_lines() if line is not None), default=0
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
