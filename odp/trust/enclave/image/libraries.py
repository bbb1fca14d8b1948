"""Shared objects: what each needs, as it says itself.

Source: System V ABI, dynamic section (DT_NEEDED, DT_SONAME).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from odp.errors import ConfigurationError

_LOADER = re.compile(r"ld-linux[A-Za-z0-9_.-]*\.so\.\d+")


class Needed(NamedTuple):
    """The native code of an image beside its extensions: the dynamic loader, and soname -> library."""

    loader: Path
    libraries: dict[str, Path]


def needed(programs: Iterable[Path], mapped: Iterable[Path]) -> Needed:
    """Of the ``mapped`` libraries those that ``programs`` (executables and extensions) need, directly or not.

    Others may be there: a system can load what it likes into every process (``ld.so.preload``).

    Raises:
        ConfigurationError: a file is no shared object, or this system has no dynamic loader of the GNU C library.
    """
    described = {path: _dynamic(path) for path in mapped}
    by_name = {soname: path for path, (soname, _) in described.items()}
    libraries: dict[str, Path] = {}
    waiting = [name for path in programs for name in _dynamic(path)[1]]
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in libraries:
            libraries[name] = by_name[name]
            waiting.extend(described[by_name[name]][1])
    loaders = [path for path in described if _LOADER.fullmatch(path.name)]
    if len(loaders) != 1:
        raise ConfigurationError("Cannot build an image: it needs the GNU C library, 2.34 or later, and its loader")
    return Needed(loaders[0], {name: path for name, path in sorted(libraries.items()) if path != loaders[0]})


def _dynamic(path: Path) -> tuple[str, list[str]]:
    """The soname of a shared object or its file's name, and the sonames that it needs."""
    try:
        with path.open("rb") as file:
            section = ELFFile(file).get_section_by_name(".dynamic")
            tags = list(section.iter_tags()) if isinstance(section, DynamicSection) else []
    except (OSError, ELFError) as error:
        raise ConfigurationError(f"Cannot build an image: {path} is no shared object ({error})") from None
    # Each kind of tag has its text under a name of its own.
    names, needs = (
        [str(getattr(tag, name)) for tag in tags if tag.entry.d_tag == kind]
        for name, kind in (("soname", "DT_SONAME"), ("needed", "DT_NEEDED"))
    )
    return (names[0] if names else path.name), needs
