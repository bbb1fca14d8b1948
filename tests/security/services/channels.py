"""A service whose private handler hides bits in what the kernel keeps, for its public handler to find.

For each bit, ``on_execute`` does something, then reads a key of its local data. The test uses that moment to have
``on_request`` measure, and gets what an app would be told: a number. Nothing fails where the kernel refuses a call.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from odp.isolated import Accepted, AppRequest, Executed, Execution, IsolatedService, Stores

# Numbers of x86-64.
CALLS = {
    "close": 3, "fstat": 5, "madvise": 28, "mincore": 27, "getrusage": 98, "sysinfo": 99, "futex": 202, "pipe2": 293,
}  # fmt: skip
PAGEOUT, FUTEX_WAIT, FUTEX_WAKE = 21, 0, 1
#: The kernel maps so much around a page that is read for the first time.
AROUND = 16 * mmap.PAGESIZE
PLACES = 56
HELD_BYTES = 96 * 2**20
#: More than a processor takes of the inode numbers at once.
PIPES = 1100

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def call(name: str, *arguments: Any) -> int:
    """A system call, past Python. Raises OSError."""
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(libc.syscall(ctypes.c_long(CALLS[name]), *given))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


# Pages of a library


class _Library(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("count", ctypes.c_uint16),
    )


def place(number: int) -> int:
    """Address of the ``number``-th of ``PLACES`` neighbourhoods of the largest code that is loaded: numpy's algebra.

    Little of it is ever used, and all templates load it from one file.
    """
    segments: list[tuple[int, int]] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)
    def visit(library: Any, size: int, data: Any) -> int:
        for index in range(library.contents.count):
            header = ctypes.string_at(library.contents.headers + 56 * index, 56)
            kind, flags, _, address, _, _, length, _ = struct.unpack("=IIQQQQQQ", header)
            if (kind, flags & 1) == (1, 1):
                segments.append((length, library.contents.address + address))
        return 0

    libc.dl_iterate_phdr(visit, None)
    length, address = max(segments)
    start = -(-address // AROUND) * AROUND
    return start + number * ((length - AROUND) // PLACES // AROUND * AROUND)


def touch(address: int, length: int = 1) -> None:
    """Reads the first byte of each page."""
    for page in range(address, address + length, mmap.PAGESIZE):
        ctypes.string_at(page, 1)


def resident(number: int) -> int:
    """How many pages of a neighbourhood are in memory."""
    told = ctypes.create_string_buffer(16)
    call("mincore", place(number), AROUND, told)
    return sum(page & 1 for page in told.raw)


def hide_in_pages(bit: int, number: int, held: list[Any]) -> None:
    touch(place(number), AROUND)
    # What was just read may stay for a moment, whatever is asked for.
    for _ in range(50 * bit):
        call("madvise", place(number), AROUND, PAGEOUT)
        if resident(number) == 0:
            break
        time.sleep(0.001)
        touch(place(number), AROUND)


def page_faults(number: int) -> int:
    """How many pages had to be read from the disk for one byte."""
    counters = [ctypes.create_string_buffer(144) for _ in range(2)]
    address = place(number)
    call("getrusage", 0, counters[0])
    touch(address)
    call("getrusage", 0, counters[1])
    before, after = (struct.unpack_from("=q", counter.raw, 72)[0] for counter in counters)
    return int(after - before)


def time_of_a_read(number: int) -> int:
    """Nanoseconds that the first read of a page takes."""
    address = place(number)
    before = time.perf_counter_ns()
    touch(address)
    return time.perf_counter_ns() - before


# Memory of the machine


def hide_in_memory(bit: int, number: int, held: list[Any]) -> None:
    held.clear()
    if bit:
        held.append(np.ones(HELD_BYTES // 8))


def free_memory(number: int) -> int:
    told = ctypes.create_string_buffer(128)
    call("sysinfo", told)
    return int(struct.unpack_from("=q", told.raw, 40)[0])


# Numbers that the kernel gives out in turn


def hide_in_inodes(bit: int, number: int, held: list[Any]) -> None:
    for _ in range(8 * PIPES * bit):
        inode_of_a_pipe()


def inode_of_a_pipe() -> int:
    ends, told = (ctypes.c_int * 2)(), ctypes.create_string_buffer(256)
    call("pipe2", ends, 0)
    call("fstat", ends[0], told)
    for end in ends:
        call("close", end)
    return int(struct.unpack_from("=Q", told.raw, 8)[0])


def newest_inode(number: int) -> int:
    return max(inode_of_a_pipe() for _ in range(PIPES))


# Words of a library's code, which is at one place of one file for everybody


def wake(bits: list[int]) -> None:
    """Wakes whoever waits at the words of the bits that are set."""
    for number, bit in enumerate(bits):
        if bit:
            call("futex", place(number), FUTEX_WAKE, 1, None, None, 0)


def woken(number: int) -> int:
    """Whether somebody wakes this process at a word, within 20 ms."""
    word = struct.unpack("=I", ctypes.string_at(place(number), 4))[0]
    try:
        return 1 - call("futex", place(number), FUTEX_WAIT, word, struct.pack("=qq", 0, 20_000_000), None, 0)
    except TimeoutError:
        return 0


CHANNELS: dict[str, tuple[Callable[[int, int, list[Any]], None], Callable[[int], int]]] = {
    "pages in memory": (hide_in_pages, resident),
    "page faults": (hide_in_pages, page_faults),
    "times of page faults": (hide_in_pages, time_of_a_read),
    "free memory": (hide_in_memory, free_memory),
    "inode numbers": (hide_in_inodes, newest_inode),
}


class Smuggler(IsolatedService):
    """Both ends of every channel."""

    def on_execute(self, execution: Execution, stores: Stores) -> Executed:
        bits = [int(letter) for letter in str(execution.work["bits"])]
        if execution.work["channel"] == "shared words":
            while stores.local("go on"):
                with contextlib.suppress(OSError):
                    wake(bits)
            return Executed({})
        hide, _ = CHANNELS[str(execution.work["channel"])]
        held: list[Any] = []
        for number, bit in enumerate(bits):
            with contextlib.suppress(OSError):
                hide(bit, number, held)
            stores.local(str(number))
        return Executed({})

    def on_request(self, request: AppRequest, stores: Stores) -> Accepted:
        find = woken if request.asked["channel"] == "shared words" else CHANNELS[str(request.asked["channel"])][1]
        found: list[int | None] = []
        for number in request.asked["numbers"]:
            try:
                found.append(find(number))
            except OSError:
                found.append(None)
        return Accepted({"found": found})
