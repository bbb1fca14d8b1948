"""The catalogues of populations, as signed tasks named them: fetched in differences, checked, remembered.

A task that is in the transparency log names a version by its hash. The steps come from the untrusted server: they have
to lead from what this host knows to exactly that hash. What is asked for follows from versions alone, never from data,
and in whole blocks, so that a request does not name the version that the host has. All devices of a host share what is
known, which is public.

::

    <folder>/<population>.catalogue     the newest version that a task named
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from odp._system.files.private_files import make_folders
from odp._system.files.state_folder import state_errors, write_atomically
from odp.crypto.log_reasons import LogReason, refused
from odp.errors import ConfigurationError, DataError, StateError
from odp.protocol.catalogues.catalogue import LARGEST_CATALOGUE, Catalogue, block_of, versions_in
from odp.protocol.catalogues.named import NamedCatalogue, named_in
from odp.refusing import refusing
from odp.v1 import common_pb2

#: Of a state folder.
FOLDER = "catalogues"
# Catalogues in memory by version: of tasks that run at one time.
_REMEMBERED = 8

#: (population, block) -> the steps of that block, from whoever serves them.
FetchSteps = Callable[[str, int], list[bytes]]


class CatalogueMemory:
    """What a host knows of catalogues; thread-safe.

    Args:
      folder: keeps them for the next run; None keeps nothing.
      fetch: asks the server for the steps of a block.
      used: called with each definition and the version that it names; what it raises refuses the task.
    """

    def __init__(
        self,
        folder: Path | None,
        fetch: FetchSteps,
        *,
        used: Callable[[common_pb2.TaskDefinition, Catalogue], None] = lambda definition, catalogue: None,
    ) -> None:
        self._used_by, self._folder, self._fetch = used, folder, fetch
        self._lock = threading.Lock()
        self._newest: dict[str, Catalogue] = {}
        self._used: dict[tuple[str, int], Catalogue] = {}

    @refusing("catalogue of a population")
    def of(self, definition: common_pb2.TaskDefinition, *, fetch: bool = True) -> Catalogue | None:
        """The catalogue version that a task names; None where it names none.

        The task has to be in the transparency log already. Without ``fetch``, nobody is asked.

        Raises:
          TransparencyError: ``withdrawn``: the version was. ``split_view``: it is another one than this host knows
            under its number. ``shrunk``: the server does not have a version that it had. ``malformed``: the steps are
            no chain, or the version has another number of items than the task's model. ``missing``: the server does
            not have it.
          ServiceError, ServiceUnavailable: the server sent too much, refuses, or does not answer.
          StateError: what is remembered cannot be read or written.
        """
        named, population = named_in(definition), definition.population
        if named is None:
            return None
        with self._lock:
            remembered = self._remembered(population)
            if remembered is None or remembered.version < named.version:
                remembered = self._extended(population, remembered, named, fetch=fetch)
                self._remember(remembered)
            what = f"catalogue version {named.version} of population {population!r}"
            if remembered.hashes[named.version - 1] != named.sha256:
                raise refused(LogReason.SPLIT_VIEW, f"{what} is another one than the version of this number before")
            if named.version in remembered.withdrawn:
                raise refused(LogReason.WITHDRAWN, f"{what} was withdrawn")
            catalogue = self._used.get((population, named.version))
            if catalogue is None or catalogue.sha256 != named.sha256:
                catalogue = self._used[population, named.version] = remembered.at(named.version)
                while len(self._used) > _REMEMBERED:
                    del self._used[next(iter(self._used))]
            if catalogue.items != named.items:
                raise refused(
                    LogReason.MALFORMED,
                    f"{what} has {catalogue.items} items, and the task's model {named.items}",
                )
            self._used_by(definition, catalogue)
            return catalogue

    def _extended(
        self, population: str, remembered: Catalogue | None, named: NamedCatalogue, *, fetch: bool
    ) -> Catalogue:
        """``remembered`` and the versions after it, up to the one that is named by its hash."""
        steps = list(() if remembered is None else remembered.steps)
        first = block_of(len(steps) + 1)
        what = f"the catalogue of population {population!r}"
        for block in range(first, block_of(named.version) + 1) if fetch else ():
            begin, have = versions_in(block).start - 1, len(steps)
            fetched = self._fetch(population, block)
            for number, step in enumerate(fetched, start=begin):
                if number < have and step != steps[number]:
                    raise refused(LogReason.SPLIT_VIEW, f"{what} has another version {number + 1} than before")
            if begin + len(fetched) < have:
                raise refused(LogReason.SHRUNK, f"{what} had {have} versions, and has {begin + len(fetched)}")
            steps += fetched[have - begin :]
            if sum(map(len, steps)) > LARGEST_CATALOGUE:
                raise refused(LogReason.MALFORMED, f"{what} has more than {LARGEST_CATALOGUE} bytes")
            if len(steps) < min(named.version, versions_in(block).stop - 1):
                break
        if len(steps) < named.version:
            raise refused(LogReason.MISSING, f"{what} has no version {named.version}, which the task names")
        try:
            # No signed task vouches for the versions after the named one: a later task will.
            catalogue = Catalogue(tuple(steps[: named.version]))
        except ConfigurationError as error:
            raise refused(LogReason.MALFORMED, f"{what} is no chain of versions: {error}") from error
        if (catalogue.population, catalogue.sha256) != (population, named.sha256):
            raise refused(LogReason.SPLIT_VIEW, f"{what} has another version {named.version} than the task names")
        return catalogue

    def _remembered(self, population: str) -> Catalogue | None:
        if (remembered := self._newest.get(population)) is None and self._folder is not None:
            path = self._folder / f"{population}.catalogue"
            if not path.exists():
                return None
            try:
                remembered = Catalogue.load(path)
            except DataError as error:
                raise StateError(f"{error}; restore it, or remove it to trust the next answer") from error
            if remembered.population != population:
                raise StateError(
                    f"{path} is of population {remembered.population!r}; remove it to trust the next answer"
                )
            self._newest[population] = remembered
        return remembered

    def _remember(self, catalogue: Catalogue) -> None:
        if self._folder is not None:
            with state_errors(self._folder):
                make_folders(self._folder)
                write_atomically(self._folder / f"{catalogue.population}.catalogue", catalogue.to_bytes())
        self._newest[catalogue.population] = catalogue
