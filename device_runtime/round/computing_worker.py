"""The processes that compute contributions: forked from one that has loaded the task's code, and holds no data.

The template runs one thread, has one socket to the device's host, and knows one task. Each contribution gets a process
of its own, forked from it, with a socket of its own, a limit of memory and no other descriptor. So it can be stopped at
any moment, and what it leaves in memory is gone with it.

Where the task has a program of its developer, the contribution gets a second, isolated process, which runs the program
and takes turns with the first (``device_runtime.isolated.training``).

::

    host                                          template
    definition, catalogue                      ->
                                               <-  ready
    fork + a socket                            ->  a process with that socket
                                               <-  its number; NO_PROCESS where the machine has none left
    end(number)                                ->  kills it

    host                                          process of one contribution
    store, its key, what is computed           ->
                                               <-  the keys of rows, if the task asks for some
    the rows                                   ->
                                               <-  payload, new local parameters; nothing where that failed

What the host says is trusted, and pickled. What a process says is bytes whose lengths the host checks.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from odp.errors import StateError

_NUMBER = struct.Struct("<Q")
_FORK, _END = b"f", b"e"
#: What a template, or a process of it, says where it cannot do what it was asked.
NOTHING: tuple[bytes, ...] = ()
#: The number of no process.
NO_PROCESS = 0


def send(channel: socket.socket, parts: Sequence[bytes]) -> None:
    """Sends some bytes strings, each with its length. Raises OSError."""
    lengths = (_NUMBER.pack(len(part)) for part in parts)
    channel.sendall(b"".join([_NUMBER.pack(len(parts)), *lengths]))
    for part in parts:
        channel.sendall(part)


def receive(channel: socket.socket, *, most: int) -> tuple[bytes, ...] | None:
    """What the other side sent; None where it closed the channel before. At most 2 parts of ``most`` bytes together.

    Raises:
      OSError: the channel broke, or its timeout passed.
      ValueError: it sent more.
    """
    if not (first := channel.recv(_NUMBER.size)):
        return None
    (count,) = _NUMBER.unpack(first + _read(channel, _NUMBER.size - len(first)))
    if count > 2:
        raise ValueError("too many parts")
    lengths = [_NUMBER.unpack(_read(channel, _NUMBER.size))[0] for _ in range(count)]
    if sum(lengths) > most:
        raise ValueError("too many bytes")
    return tuple(_read(channel, length) for length in lengths)


def _read(channel: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        if not (part := channel.recv(min(length - len(data), 2**20))):
            raise ConnectionError("the process ended")
        data += part
    return bytes(data)


def main(descriptor: int) -> None:
    """The template: serves until the host closes its socket."""
    from device_runtime.round.computations import Prepared
    from odp.models.litert.trainer import MOST_MEMORY

    # A terminal's Ctrl-C is for the host, which ends in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    definition, catalogue, memory_bytes, seconds = pickle.loads(_whole(control))  # the host is trusted
    try:
        prepared = Prepared(definition, catalogue)
        if (trainer := prepared.trainer(seconds)) is not None:
            trainer.prepare()
            memory_bytes -= MOST_MEMORY
    except Exception:
        send(control, NOTHING)
        return
    programs: dict[int, Any] = {}
    base = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    gc.collect()
    gc.freeze()
    send(control, (b"ready",))
    while True:
        kind, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not kind:
            return
        if kind == _FORK:
            process, program = _fork(descriptors[0], prepared, trainer, memory_bytes + base, seconds)
            if program is not None:
                programs[process] = program
            control.sendall(_NUMBER.pack(process))
        else:
            (process,) = _NUMBER.unpack(_read(control, _NUMBER.size))
            # It was not waited for before, so its number is nobody else's.
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            if (program := programs.pop(process, None)) is not None:
                program.close()


def _fork(descriptor: int, prepared: Any, trainer: Any, memory_bytes: int, seconds: int) -> tuple[int, Any]:
    """The number of a new process of one contribution, and that of its program, where the task has one.

    Without a process, the template serves the others all the same.
    """
    program = None
    try:
        program = None if trainer is None else trainer.process()
        process = os.fork()
    except (OSError, StateError):
        process = NO_PROCESS
    else:
        if not process:
            _compute(descriptor, prepared, program, memory_bytes=memory_bytes, seconds=seconds)
    os.close(descriptor)
    if program is not None:
        program.lent()
        if process == NO_PROCESS:
            program.close()
            program = None
    return process, program


def _whole(channel: socket.socket) -> bytes:
    if not (parts := receive(channel, most=2**40)):
        raise ConnectionError("the host ended")
    return parts[0]


def _compute(descriptor: int, prepared: Any, program: Any, *, memory_bytes: int, seconds: int) -> None:
    """One contribution, in a process of its own."""
    try:
        from odp._system.posix import resource
        from odp._system.sandbox import kernel

        kernel.end_with_parent()
        kernel.close_all_but({descriptor} if program is None else {descriptor, program.descriptor})
        kernel.no_core_dumps()
        kernel.limit_resources({resource.RLIMIT_AS: memory_bytes, resource.RLIMIT_CPU: seconds})
        channel = socket.socket(fileno=descriptor)
        try:
            _converse(channel, prepared, program)
        except Exception:  # whatever it is, it follows from the data
            send(channel, NOTHING)
    finally:
        os._exit(0)


def _converse(channel: socket.socket, prepared: Any, program: Any) -> None:
    from device_runtime.store.reader import beside

    path, key, described, until = pickle.loads(_whole(channel))
    computation = prepared.computation(described, program)
    with beside(path, key, over=lambda: time.monotonic() >= until) as store:
        own_data = computation.read(store)
    if described.keyed:
        send(channel, (own_data.keys.astype("<i8").tobytes(),))
    slices = pickle.loads(_whole(channel))
    payload, local = computation.compute(own_data, slices)
    send(channel, (payload,) if local is None else (payload, local))


if __name__ == "__main__":
    main(int(sys.argv[1]))
