"""Where a command writes its results: a place that cannot be written is refused before any work is done."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from odp.errors import ConfigurationError


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises ConfigurationError, one line, where what is written to ``path`` inside of it cannot be."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"cannot write to {path}: {error.strerror}; give another place") from error


@contextlib.contextmanager
def writing_file(path: Path) -> Iterator[None]:
    """As ``writing``; the folder of ``path`` is made, which its trial did not leave behind."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        yield


def output_folder(path: Path | None) -> Path | None:
    """``path``, if files can be written there; nothing of the trial is left. A callback of an option.

    Raises ConfigurationError.
    """
    if path is not None:
        with writing(path):
            _try(path)
    return path


def output_file(path: Path | None) -> Path | None:
    """``path``, if a file of that name can be written. As ``output_folder``."""
    if path is not None:
        if path.is_dir():
            raise ConfigurationError(f"cannot write to {path}: it is a folder; give the name of a file")
        if path.exists() and not path.is_file():
            # A pipe would end with the trial, and a device would be replaced by a file.
            raise ConfigurationError(f"cannot write to {path}: it is no ordinary file; give the name of one")
        with writing(path):
            if path.exists():
                path.open("ab").close()
            else:
                _try(path.parent)
    return path


def check_apart(paths: Mapping[str, Path | None]) -> None:
    """Returns if no two options of a command, by name, mean the same file. Raises ConfigurationError."""
    option_of: dict[Path, str] = {}
    for name, path in paths.items():
        if path is None:
            continue
        if (place := path.resolve()) in option_of:
            raise ConfigurationError(
                f"{option_of[place]} and {name} are the same file, {path}: give each a place of its own"
            )
        option_of[place] = name


def _try(folder: Path) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    made: list[Path] = []
    try:
        for new_folder in reversed(missing):
            new_folder.mkdir()
            made.append(new_folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
            file.flush()
    finally:
        for new_folder in reversed(made):
            with contextlib.suppress(OSError):
                new_folder.rmdir()


def lines_of(path: Path) -> list[str]:
    """The lines of a UTF-8 file, without their ends. Raises OSError, UnicodeDecodeError.

    Lines end where editors end them, and not at characters within a key that Unicode also calls ends; an order mark at
    the beginning is no part of the first line.
    """
    lines = path.read_bytes().decode("utf-8-sig").split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
