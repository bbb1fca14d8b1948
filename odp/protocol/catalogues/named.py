"""The catalogue version that a task names, whatever kind of model it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from odp.errors import ConfigurationError
from odp.v1 import common_pb2

if TYPE_CHECKING:
    from odp.protocol.catalogues.catalogue import Catalogue


@dataclass(frozen=True)
class NamedCatalogue:
    """What a definition says of its catalogue; nothing of it was checked.

    Attributes:
      task: name of the task.
      population: whose catalogue it is.
      version: 1, 2, ..
      sha256: of the version's step, 32 bytes.
      items: of the task's model: the version has as many.
    """

    task: str
    population: str
    version: int
    sha256: bytes
    items: int


def named_in(definition: common_pb2.TaskDefinition) -> NamedCatalogue | None:
    """The catalogue version that a task names, or None where its devices know items by number, or it has none."""
    model = definition.model if definition.HasField("model") else definition.rated_items
    if not model.HasField("catalogue"):
        return None
    named = model.catalogue
    return NamedCatalogue(definition.name, definition.population, named.version, named.sha256, model.items)


def require_named(newest: Catalogue | None, named: NamedCatalogue) -> None:
    """Returns if a task may name the catalogue version that it does.

    Args:
      newest: the newest version of the catalogue of the task's population; None where there is none.
      named: by the task.

    Raises:
      ConfigurationError: the version does not exist or is another one, was withdrawn, or has another number of items.
    """
    if newest is None or named.version > newest.version:
        newest_text = "no catalogue" if newest is None else f"version {newest.version} of the catalogue as its newest"
        raise ConfigurationError(
            f"task {named.task!r} names catalogue version {named.version}, and population {named.population!r} has "
            f"{newest_text}: run `odp catalogue publish` first"
        )
    if newest.hashes[named.version - 1] != named.sha256:
        raise ConfigurationError(
            f"task {named.task!r} names another catalogue version {named.version} of population {named.population!r} "
            "than the one that was published: make it with that catalogue file"
        )
    from odp.protocol.catalogues.step import Step  # devices and logs read steps, and enclaves never

    newest.require_usable(named.version)
    items = Step.decode(newest.steps[named.version - 1]).items
    if items != named.items:
        raise ConfigurationError(
            f"Expected items={named.items} of task {named.task!r} to be the {items} of catalogue version "
            f"{named.version}"
        )
