"""What an image is made of, for people who decide whether to trust it; and what two images differ in."""

from __future__ import annotations

from dataclasses import dataclass

from odp.trust.enclave.image.lines import line_counts
from odp.trust.enclave.image.parts import ImageFile

_MODULES, _NATIVE = ("module", "package"), ("dynamic-loader", "extension", "library", "program")


@dataclass(frozen=True)
class Listing:
    """An image in figures.

    Attributes:
        entry: import name of the module that it starts with.
        digest: the measurement.
        components: see ``odp.trust.enclave.image.parts``.
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
    """The listing of an image. Raises ConfigurationError where a part is not as its manifest says, or no code."""
    image = file.image
    code, base = (_lines(file, component) for component in ("code", "base"))
    return Listing(
        image.entry,
        image.digest,
        image.components,
        tuple(file.read(image.only("versions")).decode("ascii", "replace").splitlines()),
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


def _lines(file: ImageFile, component: str) -> dict[str, int]:
    """Module of a component -> its lines."""
    modules = [part for part in file.image.of_kind(*_MODULES) if part.component == component]
    counts = line_counts([file.read(part) for part in modules])
    return {part.name: count for part, count in zip(modules, counts, strict=True)}
