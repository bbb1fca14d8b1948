"""A catalogue: the items of a population's models by keys that stay, version by version.

    >>> first = Catalogue.make("films", ["Alien", "Brazil", "Casablanca"])
    >>> second = first.change(add=["Dune"], retire=["Brazil"])
    >>> second.version, second.keys
    (2, ('Alien', 'Casablanca', 'Dune'))
    >>> second.at(1) == first
    True

A version is named by its number and the hash of its step. A step names the one before by its hash, so that one hash
fixes all versions up to it: who has it can take the steps from anybody.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np

from odp import _validate
from odp.errors import ConfigurationError, DataError
from odp.numerics.arrays import Int64Array
from odp.protocol.catalogues.step import LARGEST_STEP, Step, check_keys, step_sha256
from odp.v1 import catalogue_version_pb2

#: Versions of each block after block 0, which is version 1 alone.
BLOCK = 8
#: Of the steps of a block together.
LARGEST_BLOCK = LARGEST_STEP
#: Of all steps together.
LARGEST_CATALOGUE = 64 * 2**20
_MAGIC = b"odp-catalogue-2\n"
_LENGTH_BYTES, _HASH_BYTES = 4, 32
#: A file of more is none of this program.
_LARGEST_FILE = 2**30


class NumberedKeys(Protocol):
    """Who knows the number of an item by its key: a ``Catalogue``, or the keys of an item index."""

    def places(self, wanted: Sequence[str]) -> Int64Array:
        """The item number of each wanted key, int64 [n]; -1 where no item has it."""


@dataclass(frozen=True)
class Catalogue:
    """One version of a catalogue, and all versions before it; immutable.

    Args:
      steps: bytes of the step of each version from 1 on, as ``odp.protocol.catalogues.step`` has them.

    Attributes:
      population: whose items these are.
      version: 1, 2, ..
      keys: of the items, in the order of their numbers; distinct.
      withdrawn: versions that no task may name any more.
      hashes: SHA-256 of the step of each version from 1 on, 32 bytes each.

    Raises:
      ConfigurationError: a step is malformed, or does not follow the one before it.
    """

    steps: tuple[bytes, ...] = field(repr=False)
    population: str = field(init=False, compare=False)
    version: int = field(init=False, compare=False)
    keys: tuple[str, ...] = field(init=False, compare=False, repr=False)
    withdrawn: frozenset[int] = field(init=False, compare=False)
    hashes: tuple[bytes, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Replays the steps."""
        if not self.steps:
            raise ConfigurationError("Expected a catalogue to have a version")
        # A dict keeps the order of insertion when a key is deleted: this is the list of items.
        items: dict[str, None] = {}
        withdrawn: set[int] = set()
        hashes: list[bytes] = []
        population, block_bytes, whole_bytes = "", 0, 0
        for number, data in enumerate(self.steps, start=1):
            step = Step.decode(data)
            population = population or step.population
            _check_follows(step, number, population, hashes)
            whole_bytes += len(data)
            if whole_bytes > LARGEST_CATALOGUE:
                raise ConfigurationError(
                    f"Expected a catalogue of at most {LARGEST_CATALOGUE} bytes, all versions together"
                )
            block_bytes = len(data) + (block_bytes if number > 2 and block_of(number) == block_of(number - 1) else 0)
            if block_bytes > LARGEST_BLOCK:
                raise ConfigurationError(
                    f"Expected the steps of {BLOCK} versions to have at most {LARGEST_BLOCK} bytes: version {number} "
                    "has too many changes"
                )
            _apply(step, items, withdrawn)
            hashes.append(step_sha256(data))
        values = {
            "population": population, "version": len(self.steps), "keys": tuple(items),
            "withdrawn": frozenset(withdrawn), "hashes": tuple(hashes),
        }  # fmt: skip
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def make(cls, population: str, keys: Sequence[str]) -> Catalogue:
        """Version 1 of a new catalogue.

        Args:
          population: its name.
          keys: one per item, in the order of their numbers: distinct printable texts of at most 256 bytes in UTF-8.

        Raises:
          ConfigurationError: the name is none, there is no item, or a key is none or stands twice.
        """
        _validate.identifier(population=population)
        check_keys(keys, name="keys")
        if not keys:
            raise ConfigurationError("Expected keys of a catalogue to name at least one item")
        step = Step(population=population, version=1, previous_sha256=b"", added=tuple(keys), items=len(keys))
        return cls((step.encode(),))

    def change(self, *, add: Sequence[str] = (), retire: Sequence[str] = (), withdraw: Iterable[int] = ()) -> Catalogue:
        """The version after this one.

        Args:
          add: keys of new items. They come after the items that stay.
          retire: keys of items that are none any more.
          withdraw: versions that no task may name any more, because something is wrong with their items.

        Raises:
          ConfigurationError: a key to add is one already, or one to retire is none, or stands twice; a version is
            withdrawn already or was never made; nothing would change, or no item would be left.
        """
        check_keys(add, name="add")
        check_keys(retire, name="retire")
        versions = tuple(withdraw)
        for version in versions:
            _validate.integer(low=1, high=self.version, withdraw=version)
        left = len(self.keys) + len(add) - len(retire)
        step = Step(
            population=self.population,
            version=self.version + 1,
            previous_sha256=self.sha256,
            added=tuple(add),
            retired=tuple(retire),
            withdrawn=tuple(sorted(versions)),
            items=left,
        )
        # Who names an unknown item is told so before anything else.
        _apply(step, dict.fromkeys(self.keys), set(self.withdrawn))
        if not left:
            raise ConfigurationError(f"Expected a catalogue to keep an item: retire at most {len(self.keys) - 1}")
        return Catalogue((*self.steps, step.encode()))

    def change_to(self, keys: Sequence[str], *, withdraw: Iterable[int] = ()) -> Catalogue:
        """The version after this one that has the items ``keys``, in any order; items that stay keep theirs.

        Raises ConfigurationError as ``change``.
        """
        check_keys(keys, name="keys")
        wanted, current = set(keys), set(self.keys)
        return self.change(
            add=[key for key in keys if key not in current],
            retire=[key for key in self.keys if key not in wanted],
            withdraw=withdraw,
        )

    @property
    def items(self) -> int:
        """The number of items."""
        return len(self.keys)

    @property
    def sha256(self) -> bytes:
        """The version's id, 32 bytes: it fixes all versions before it as well."""
        return self.hashes[-1]

    @functools.cached_property
    def numbers(self) -> Mapping[str, int]:
        """The number of each item, by its key."""
        return MappingProxyType(dict(zip(self.keys, range(len(self.keys)), strict=True)))

    def places(self, wanted: Sequence[str]) -> Int64Array:
        """The item number of each wanted key, int64 [n]; -1 where no item has it."""
        numbers = self.numbers
        return np.array([numbers.get(key, -1) for key in wanted], dtype=np.int64)

    def at(self, version: int) -> Catalogue:
        """An earlier version, as it was then. Raises ConfigurationError where there is none of this number."""
        _validate.integer(low=1, high=self.version, version=version)
        return self if version == self.version else Catalogue(self.steps[:version])

    def require_usable(self, version: int) -> None:
        """Returns if a task may name ``version``. Raises ConfigurationError where it was withdrawn."""
        if version in self.withdrawn:
            raise ConfigurationError(
                f"catalogue version {version} of population {self.population!r} was withdrawn: "
                f"make the task with version {self.version}"
            )

    def require_items(self, items: int) -> None:
        """Returns if a model with ``items`` items may name this version. Raises ConfigurationError."""
        if self.items != items:
            raise ConfigurationError(
                f"Expected items={items} to be the {self.items} of catalogue version {self.version}"
            )
        self.require_usable(self.version)

    def to_proto(self) -> catalogue_version_pb2.CatalogueVersion:
        """How a task names this version."""
        return catalogue_version_pb2.CatalogueVersion(version=self.version, sha256=self.sha256)

    def to_bytes(self) -> bytes:
        """The content of a catalogue file: the steps, and the id of the version, without which its end is missing."""
        steps = b"".join(len(step).to_bytes(_LENGTH_BYTES, "big") + step for step in self.steps)
        return _MAGIC + steps + self.sha256

    @classmethod
    def from_bytes(cls, data: bytes) -> Catalogue:
        """The catalogue of ``to_bytes``. Raises ConfigurationError where ``data`` are none."""
        if not data.startswith(_MAGIC):
            raise ConfigurationError("Expected a catalogue file, as `odp catalogue make` writes it")
        steps, at, end = [], len(_MAGIC), len(data) - _HASH_BYTES
        while at < end:
            start = at + _LENGTH_BYTES
            at = start + int.from_bytes(data[at:start], "big")
            steps.append(data[start:at])
        if at != end or not steps or step_sha256(steps[-1]) != data[end:]:
            raise ConfigurationError("Expected a whole catalogue file: its end is missing")
        return cls(tuple(steps))

    def save(self, path: str | Path) -> None:
        """Writes a file that ``load`` reads, whole or not at all. Raises StateError."""
        from odp._system.files.state_folder import state_errors, write_atomically

        with state_errors(Path(path)):
            write_atomically(Path(path), self.to_bytes(), mode=0o644)

    @classmethod
    def load(cls, path: str | Path) -> Catalogue:
        """The catalogue of a file.

        Raises:
          DataError: it cannot be read, or holds something else.
        """
        try:
            with Path(path).open("rb") as file:
                return cls.from_bytes(file.read(_LARGEST_FILE))
        except OSError as error:
            raise DataError(f"cannot read the catalogue {path}: {error.strerror}; check the path") from error
        except ConfigurationError as error:
            raise DataError(f"{path} is no catalogue, or a damaged one: {error}") from error


def block_of(version: int) -> int:
    """The number of the block that has ``version``: 0 for version 1 alone, then 8 versions each."""
    return 0 if version == 1 else 1 + (version - 2) // BLOCK


def versions_in(block: int) -> range:
    """The versions of a block."""
    return range(1, 2) if block == 0 else range(2 + (block - 1) * BLOCK, 2 + block * BLOCK)


def _check_follows(step: Step, number: int, population: str, hashes: Sequence[bytes]) -> None:
    if (step.version, step.population) != (number, population):
        raise ConfigurationError(
            f"Expected version {number} of the catalogue of {population!r}, got version {step.version} of "
            f"{step.population!r}"
        )
    if step.previous_sha256 != (hashes[-1] if hashes else b""):
        raise ConfigurationError(f"catalogue version {number} of population {population!r} follows another version")


def _apply(step: Step, items: dict[str, None], withdrawn: set[int]) -> None:
    """Changes ``items`` and ``withdrawn`` as ``step`` says. Raises ConfigurationError where it cannot be."""
    where = f"catalogue version {step.version} of population {step.population!r}"
    for key in step.retired:
        if key not in items:
            # Steps also come from hostile servers: looking for the nearest of many keys would take long.
            near = _validate.nearest(key, items) if len(items) <= 1_000 else ""
            raise ConfigurationError(f"{where} retires {key!r}, which is no item of the version before{near}")
        del items[key]
    if not items.keys().isdisjoint(step.added):
        doubled = next(key for key in step.added if key in items)
        raise ConfigurationError(f"{where} adds {doubled!r}, which is an item already")
    items.update(dict.fromkeys(step.added))
    for version in step.withdrawn:
        if version in withdrawn:
            raise ConfigurationError(f"{where} withdraws version {version}, which is withdrawn already")
        withdrawn.add(version)
    if len(items) != step.items:
        raise ConfigurationError(f"{where} says that it has {step.items} items, and has {len(items)}")
