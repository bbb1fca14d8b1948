"""The filters of system calls, run by a small machine of the test's own, for both architectures."""

from __future__ import annotations

import errno
import struct

import pytest

from odp._system.sandbox.seccomp import COMPUTING, ISOLATED, CallList, filter_for

PROCESS = 4242
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
DENY, NO_SUCH_CALL = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS

# Numbers of linux/unistd.h, written apart from the module's: (x86-64, aarch64).
READ, MMAP, FUTEX, GETRANDOM, CLONE, CLONE3 = (0, 63), (9, 222), (202, 98), (318, 278), (56, 220), (435, 435)
TGKILL, PRLIMIT64, PRCTL, IOCTL, FCNTL = (234, 131), (302, 261), (157, 167), (16, 29), (72, 25)
MADVISE, MREMAP, SENDTO, SCHED_GETAFFINITY = (28, 233), (25, 216), (44, 206), (204, 123)
CLOCK_GETTIME, CLOCK_GETRES, CLOCK_NANOSLEEP = (228, 113), (229, 114), (230, 115)
OPENAT, SOCKET, CONNECT, EXECVE, PTRACE = (257, 56), (41, 198), (42, 203), (59, 221), (101, 117)
PROCESS_VM_READV, KILL_CALL, BPF, IO_URING_SETUP, UNSHARE = (310, 270), (62, 129), (321, 280), (425, 425), (272, 97)
OPENAT2, EXECVEAT, PIDFD_GETFD, MEMFD_CREATE, RECVMSG = (437, 437), (322, 281), (438, 438), (319, 279), (47, 212)
MINCORE, GETRUSAGE, SYSINFO, TIMES, UNAME, GETCPU = (27, 232), (98, 165), (99, 179), (100, 153), (63, 160), (309, 168)
FSTAT, PIPE2, GETSOCKOPT, FUTEX_WAITV, MEMBARRIER = (5, 80), (293, 59), (55, 209), (449, 449), (324, 283)
USERFAULTFD, PERF_EVENT_OPEN, KCMP, ADD_KEY, MQ_OPEN = (323, 282), (298, 241), (312, 272), (248, 217), (240, 180)
MLOCK, GET_MEMPOLICY, SENDMSG, GETPID, GETTID = (149, 228), (239, 236), (46, 211), (39, 172), (186, 178)

THREAD = 0x3D0F00
NEW_MEMORY = 0x22


def run(machine: str, number: int, *arguments: int, allowed: CallList, architecture: int | None = None) -> int:
    """What the filter answers: classic BPF over a struct seccomp_data."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    told = ARCHITECTURE[machine] if architecture is None else architecture
    data = struct.pack("<IIQ6Q", number, told, 0, *(value % 2**64 for value in padded))
    rules, place, value = filter_for(machine, PROCESS, allowed), 0, 0
    assert len(rules) < 4096
    for _ in range(len(rules)):
        code, when, otherwise, constant = rules[place]
        place += 1
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, constant)
        elif code == 0x54:
            value &= constant
        elif code == 0x06:
            return constant
        else:
            taken = value == constant if code == 0x15 else bool(value & constant)
            assert code in (0x15, 0x45)
            place += when if taken else otherwise
    raise AssertionError("the filter ran past its end")


machines = pytest.mark.parametrize(("machine", "which"), [("x86_64", 0), ("aarch64", 1)])
lists = pytest.mark.parametrize("allowed", [COMPUTING, ISOLATED], ids=["computing", "isolated"])


@machines
@lists
def test_computing_and_talking_are_allowed(machine: str, which: int, allowed: CallList) -> None:
    def answer(call: tuple[int, int], *arguments: int) -> int:
        return run(machine, call[which], *arguments, allowed=allowed)

    assert answer(READ) == ALLOW
    assert answer(MMAP, 0, 2**20, 3, NEW_MEMORY) == ALLOW
    assert answer(MMAP, 0, 2**20, 0, NEW_MEMORY | 0x4000 | 0x20000, -1) == ALLOW
    assert answer(SENDTO, 3, 0x7FFF00000000, 10, 0, 0) == ALLOW
    for operation in (0 | 128, 1 | 128, 9 | 128, 9 | 128 | 256):
        assert answer(FUTEX, 0x7FFF00000000, operation) == ALLOW
    # Of the last kind are the seeds of hash tables in Rust, which panics where it gets none.
    for flags in (0, 1, 4):
        assert answer(GETRANDOM, 0x7FFF00000000, 64, flags) == ALLOW
    for clock in (0, 1, 2, 3, 7):
        assert answer(CLOCK_GETTIME, clock) == ALLOW
        assert answer(CLOCK_GETRES, clock) == ALLOW
    for clock in (0, 1):
        assert answer(CLOCK_NANOSLEEP, clock) == ALLOW


@machines
def test_an_enclave_may_have_threads(machine: str, which: int) -> None:
    def answer(call: tuple[int, int], *arguments: int) -> int:
        return run(machine, call[which], *arguments, allowed=COMPUTING)

    assert answer(CLONE, THREAD) == ALLOW
    assert answer(TGKILL, PROCESS, 7, 6) == ALLOW
    assert answer(PRCTL, 15) == ALLOW
    assert answer(IOCTL, 3, 0x5421) == ALLOW
    assert answer(SCHED_GETAFFINITY, 0) == ALLOW
    assert answer(MREMAP) == ALLOW
    # How a thread is waited for.
    for operation in (0, 9, 9 | 256):
        assert answer(FUTEX, 0x7FFF00000000, operation) == ALLOW
    for advice in (4, 8, 14):
        assert answer(MADVISE, 0x7FFF00000000, 4096, advice) == ALLOW


@machines
def test_a_developers_code_may_not_and_has_no_call_that_tells_of_others(machine: str, which: int) -> None:
    def answer(call: tuple[int, int], *arguments: int) -> int:
        return run(machine, call[which], *arguments, allowed=ISOLATED)

    assert answer(CLONE, THREAD) == DENY
    for call in (TGKILL, PRCTL, IOCTL, SCHED_GETAFFINITY, MREMAP, MADVISE, GETPID, GETTID):
        assert answer(call, *([PROCESS] if call is TGKILL else [15 if call is PRCTL else 0])) == DENY
    for operation in (0, 1, 9, 9 | 256):
        assert answer(FUTEX, 0x7FFF00000000, operation) == DENY


@machines
@lists
def test_files_sockets_programs_and_what_the_kernel_counts_are_not(machine: str, which: int, allowed: CallList) -> None:
    for call in (
        OPENAT, OPENAT2, SOCKET, CONNECT, EXECVE, EXECVEAT, PTRACE, PROCESS_VM_READV, KILL_CALL, BPF, IO_URING_SETUP,
        UNSHARE, PIDFD_GETFD, MEMFD_CREATE, RECVMSG, SENDMSG, MINCORE, GETRUSAGE, SYSINFO, TIMES, UNAME, GETCPU, FSTAT,
        PIPE2, GETSOCKOPT, FUTEX_WAITV, MEMBARRIER, USERFAULTFD, PERF_EVENT_OPEN, KCMP, ADD_KEY, MQ_OPEN, MLOCK,
        GET_MEMPOLICY, FCNTL, PRLIMIT64,
    ):  # fmt: skip
        assert run(machine, call[which], allowed=allowed) == DENY, call


@machines
@lists
def test_calls_that_are_allowed_for_some_arguments_are_refused_for_all_others(
    machine: str, which: int, allowed: CallList
) -> None:
    def answer(call: tuple[int, int], *arguments: int) -> int:
        return run(machine, call[which], *arguments, allowed=allowed)

    assert answer(CLONE3) == NO_SUCH_CALL
    # Processes, threads in namespaces of their own, threads that share less than all, or signal at their end.
    for flags in (17, 0x100 | 17, 0x4000 | 0x100 | 17, THREAD | 0x10000000, THREAD | 0x40000000, THREAD | 0x80, 0, 1,
                  0x10000, THREAD & ~0x100):  # fmt: skip
        assert answer(CLONE, flags) == DENY, hex(flags)
    for process in (1, 0, PROCESS + 1, -1):
        assert answer(TGKILL, process, 7, 9) == DENY
    for option in (1, 4, 22, 38, 23, 41, 67):
        assert answer(PRCTL, option, 1) == DENY
    for request in (0x5401, 0x5412, 0x5414):
        assert answer(IOCTL, 0, request) == DENY
    # Of a file, shared, both, huge, locked, given up when memory is short, growing downwards.
    for flags in (0x02, 0x21, 0x23, NEW_MEMORY | 0x40000, NEW_MEMORY | 0x2000, 0x28, NEW_MEMORY | 0x100, 0x20, 0):
        assert answer(MMAP, 0, 4096, 3, flags) == DENY, hex(flags)
    # COLD, PAGEOUT, POPULATE_READ, WILLNEED, MERGEABLE.
    for advice in (20, 21, 22, 3, 12, 0):
        assert answer(MADVISE, 0x7FFF00000000, 4096, advice) == DENY
    # Words that processes share, and locks that write a thread's number.
    for operation in (1, 10, 5, 6, 6 | 128, 7 | 128, 8 | 128, 11 | 128, 13 | 128):
        assert answer(FUTEX, 0x7FFF00000000, operation) == DENY, operation
    # Clocks of processes and descriptors, and alarms.
    for clock in (~1 << 3 | 2, ~PROCESS << 3 | 6, ~3 << 3 | 3, 8, 9, 10, 12):
        for call in (CLOCK_GETTIME, CLOCK_GETRES, CLOCK_NANOSLEEP):
            assert answer(call, clock) == DENY, clock
    assert answer(GETRANDOM, 0x7FFF00000000, 64, 2) == DENY
    for address in (1, 0x7FFF00000000, 2**63):
        assert answer(SENDTO, 3, 0x7FFF00000000, 10, 0, address) == DENY
    for process in (1, 2**32):
        assert answer(SCHED_GETAFFINITY, process) == DENY


@machines
@pytest.mark.parametrize(("allowed", "most"), [(COMPUTING, 34), (ISOLATED, 20)], ids=["computing", "isolated"])
def test_every_number_that_is_not_listed_is_refused(machine: str, which: int, allowed: CallList, most: int) -> None:
    answers = {number: run(machine, number, allowed=allowed) for number in range(1024)}
    found = {number for number, answer in answers.items() if answer == ALLOW}
    assert len(found) < most
    assert not found & {call[which] for call in (OPENAT, SOCKET, EXECVE, PTRACE, CLONE, CLONE3)}
    # The same calls under the numbers of the x32 interface.
    assert {run(machine, 0x40000000 | number, allowed=allowed) for number in found} == {DENY}


@machines
@lists
def test_another_architectures_calls_end_the_process(machine: str, which: int, allowed: CallList) -> None:
    assert run(machine, READ[which], allowed=allowed, architecture=0x40000003) == KILL
