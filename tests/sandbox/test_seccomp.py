"""The filter of system calls, run by a small machine of the test's own, for both architectures."""

from __future__ import annotations

import errno
import struct

import pytest

from odp.sandbox.seccomp import filter_for

PROCESS = 4242
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
DENY, NO_SUCH_CALL = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS

# Numbers of linux/unistd.h, written apart from the module's: (x86-64, aarch64).
READ, MMAP, FUTEX, GETRANDOM, CLONE, CLONE3 = (0, 63), (9, 222), (202, 98), (318, 278), (56, 220), (435, 435)
TGKILL, PRLIMIT64, PRCTL, IOCTL, FCNTL = (234, 131), (302, 261), (157, 167), (16, 29), (72, 25)
OPENAT, SOCKET, CONNECT, EXECVE, PTRACE = (257, 56), (41, 198), (42, 203), (59, 221), (101, 117)
PROCESS_VM_READV, KILL_CALL, BPF, IO_URING_SETUP, UNSHARE = (310, 270), (62, 129), (321, 280), (425, 425), (272, 97)
OPENAT2, EXECVEAT, PIDFD_GETFD, MEMFD_CREATE, RECVMSG = (437, 437), (322, 281), (438, 438), (319, 279), (47, 212)

THREAD = 0x3D0F00


def run(machine: str, number: int, *arguments: int, architecture: int | None = None, threads: bool = True) -> int:
    """What the filter answers: classic BPF over a struct seccomp_data."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    told = ARCHITECTURE[machine] if architecture is None else architecture
    data = struct.pack("<IIQ6Q", number, told, 0, *(value % 2**64 for value in padded))
    rules, place, value = filter_for(machine, PROCESS, threads=threads), 0, 0
    assert len(rules) < 4096
    for _ in range(len(rules)):
        code, when, otherwise, constant = rules[place]
        place += 1
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, constant)
        elif code == 0x06:
            return constant
        else:
            taken = value == constant if code == 0x15 else bool(value & constant)
            assert code in (0x15, 0x45)
            place += when if taken else otherwise
    raise AssertionError("the filter ran past its end")


machines = pytest.mark.parametrize(("machine", "which"), [("x86_64", 0), ("aarch64", 1)])


@machines
def test_computing_threads_and_talking_are_allowed(machine: str, which: int) -> None:
    for call in (READ, MMAP, FUTEX, GETRANDOM):
        assert run(machine, call[which]) == ALLOW
    assert run(machine, CLONE[which], THREAD) == ALLOW
    assert run(machine, TGKILL[which], PROCESS, 7, 6) == ALLOW
    assert run(machine, PRLIMIT64[which], 0, 4, 0, 0x7FFF00000000) == ALLOW
    assert run(machine, PRCTL[which], 15) == ALLOW
    assert run(machine, IOCTL[which], 3, 0x5421) == ALLOW
    for command in (0, 1, 2, 3, 4, 1030):
        assert run(machine, FCNTL[which], 3, command) == ALLOW


@machines
def test_a_process_may_give_up_threads_too(machine: str, which: int) -> None:
    assert run(machine, CLONE[which], THREAD, threads=False) == DENY
    assert run(machine, CLONE3[which], threads=False) == NO_SUCH_CALL
    assert run(machine, FUTEX[which], threads=False) == ALLOW


@machines
def test_files_sockets_programs_and_other_processes_are_not(machine: str, which: int) -> None:
    for call in (
        OPENAT, OPENAT2, SOCKET, CONNECT, EXECVE, EXECVEAT, PTRACE, PROCESS_VM_READV, KILL_CALL, BPF, IO_URING_SETUP,
        UNSHARE, PIDFD_GETFD, MEMFD_CREATE, RECVMSG,
    ):  # fmt: skip
        assert run(machine, call[which]) == DENY, call


@machines
def test_calls_that_are_allowed_for_some_arguments_are_refused_for_all_others(machine: str, which: int) -> None:
    assert run(machine, CLONE3[which]) == NO_SUCH_CALL
    for flags in (17, 0x100 | 17, 0x4000 | 0x100 | 17, THREAD | 0x10000000, THREAD | 0x40000000, THREAD | 0x80, 0):
        assert run(machine, CLONE[which], flags) == DENY, hex(flags)
    for process in (1, 0, PROCESS + 1, -1):
        assert run(machine, TGKILL[which], process, 7, 9) == DENY
    for new_limit in (1, 0x7FFF00000000, 2**63):
        assert run(machine, PRLIMIT64[which], 0, 4, new_limit) == DENY
    for option in (1, 4, 22, 38, 23):
        assert run(machine, PRCTL[which], option, 1) == DENY
    for request in (0x5401, 0x5412, 0x5414):
        assert run(machine, IOCTL[which], 0, request) == DENY
    # F_SETOWN and F_SETSIG let the kernel send any signal to any process of the user; leases and locks; sizes of pipes.
    for command in (5, 6, 7, 8, 10, 15, 1024, 1026, 1031, 1033):
        assert run(machine, FCNTL[which], 3, command) == DENY, command


@machines
def test_every_number_that_is_not_listed_is_refused(machine: str, which: int) -> None:
    allowed = {number for number in range(1024) if run(machine, number) == ALLOW}
    assert len(allowed) < 90
    assert not allowed & {call[which] for call in (OPENAT, SOCKET, EXECVE, PTRACE, CLONE, CLONE3)}
    # The same calls under the numbers of the x32 interface.
    assert {run(machine, 0x40000000 | number) for number in allowed} == {DENY}


@machines
def test_another_architectures_calls_end_the_process(machine: str, which: int) -> None:
    assert run(machine, READ[which], architecture=0x40000003) == KILL
