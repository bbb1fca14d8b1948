"""Memory that no other process shares, not even for reading: no page of a file, no merged page.

Processes that map one file share its pages in the kernel's cache. Which of these pages are in memory, one process can
change and another one can find out: by asking, by counting page faults, or by the time that a first read takes. So
``own_copies`` puts copies in the place of all pages of files, the program's own code included, and of its libraries.
What is forked afterwards inherits the copies.

Source: proc_pid_maps(5), proc_pid_smaps(5), mremap(2), PR_SET_THP_DISABLE(2const), PR_SET_MEMORY_MERGE in prctl(2).
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from odp._system.sandbox import kernel

_SET_THP_DISABLE, _GET_THP_DISABLE, _SET_MEMORY_MERGE, _GET_MEMORY_MERGE = 41, 42, 67, 68
_PROT_NONE = 0
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_FAILED = ctypes.c_void_p(-1).value
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ([-r])([-w])([-x])([ps]) [0-9a-f]+ \S+ (\d+)")
_KIBIBYTES = re.compile(r"(Anonymous|Swap): +(\d+) kB")


@dataclass(frozen=True)
class _Mapping:
    """A mapping of a file from ``start`` to ``end`` with the given ``protection``; ``copied`` bytes are private."""

    start: int
    end: int
    protection: int
    shared: bool
    copied: int


def no_shared_pages() -> bool:
    """The kernel neither merges pages of this process with equal ones of others, nor backs them by huge ones.

    Whether a huge page is free depends on all processes, and shows in the first write to it.
    """
    kernel.prctl(_SET_THP_DISABLE, 1)
    try:
        kernel.prctl(_SET_MEMORY_MERGE, 0)
        merging = kernel.prctl(_GET_MEMORY_MERGE)
    except OSError:  # a kernel that cannot merge what did not ask for it
        merging = 0
    return kernel.prctl(_GET_THP_DISABLE) == 1 and merging == 0


def own_copies() -> bool:
    """Replaces all mapped pages of files by private copies; returns whether none is left.

    For a process of one thread. Pages that it may write to (variables of libraries) are copied where they lie, because
    they may change while this runs: each is written to. The others are moved in from new memory, so that what they are
    called by stays the same and no file is behind them.

    Raises:
        OSError: the kernel refused.
    """
    for mapping in _of_files():
        if mapping.shared and mapping.protection & mmap.PROT_WRITE:
            return False  # what is written there is meant for the file
        if mapping.protection & mmap.PROT_WRITE:
            for page in range(mapping.start, mapping.end, mmap.PAGESIZE):
                # One call, so that nobody writes between its read and its write.
                ctypes.memmove(page, page, 1)
        else:
            _replace(mapping)
    return all(mapping.copied >= mapping.end - mapping.start for mapping in _of_files())


def _replace(mapping: _Mapping) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
    length = ctypes.c_size_t(mapping.end - mapping.start)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    copy = libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, ctypes.c_long(0))
    _check(copy)
    if mapping.protection & mmap.PROT_READ:
        ctypes.memmove(copy, mapping.start, mapping.end - mapping.start)
    elif mapping.protection != _PROT_NONE:
        raise PermissionError("a file is mapped that cannot be read")
    if libc.mprotect(ctypes.c_void_p(copy), length, mapping.protection) != 0:
        _check(_FAILED)
    place = ctypes.c_void_p(mapping.start)
    _check(libc.mremap(ctypes.c_void_p(copy), length, length, _MREMAP_MAYMOVE | _MREMAP_FIXED, place))


def _check(address: int | None) -> None:
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), "the kernel refused to move memory")


def _of_files() -> Iterator[_Mapping]:
    """The mappings of files at the time of the call."""
    mappings = re.split(r"^(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for text in mappings:
        place = _MAPPING.match(text)
        if place is None or place[7] == "0":
            continue
        start, end = int(place[1], 16), int(place[2], 16)
        bits = zip(place.group(3, 4, 5), (mmap.PROT_READ, mmap.PROT_WRITE, mmap.PROT_EXEC), strict=True)
        protection = sum(bit for letter, bit in bits if letter != "-")
        copied = 1024 * sum(int(size) for _, size in _KIBIBYTES.findall(text))
        yield _Mapping(start, end, protection, place[6] == "s", copied)
