"""What runs in a process under the failing disk: ``python -m faults.scenarios SCENARIO FOLDER SERVICE``."""

from __future__ import annotations

import errno
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from faults.disk import Disk
from faults.services import SERVICES, Service, Step

from odp.errors import DiskFailed, OdpError

_MOST = 400


def _checked(service: Service, disk: Disk, done: int, at: str, *, names_survive: bool) -> None:
    """The start after a power cut now, on a file system that keeps names ahead of contents or on one that does not."""
    with tempfile.TemporaryDirectory() as outside:
        left = disk.cut(Path(outside) / "cut", names_survive=names_survive)
        (folder,) = left.iterdir()
        try:
            service.check(folder, done)
        except BaseException as error:
            error.add_note(f"after {done} steps, power cut at {at}, names_survive={names_survive}")
            raise


def _acknowledged(steps: Sequence[Step]) -> tuple[int, OdpError | None]:
    """How many steps were done before the first that failed, and how it did."""
    for number, step in enumerate(steps):
        try:
            step()
        except OdpError as error:
            return number, error
    return len(steps), None


def power_cuts(disk: Disk, folder: Path, name: str) -> int:
    """The power fails after each step; how many there were."""
    service = SERVICES[name](folder / "service")
    for done, step in enumerate((lambda: None, *service.steps)):
        step()
        for names_survive in (False, True):
            _checked(service, disk, done, "an acknowledged step", names_survive=names_survive)
    service.close()
    return len(service.steps)


def failing_syncs(disk: Disk, folder: Path, name: str) -> int:
    """One sync after the other fails once, and the process ends; how many there were.

    The power fails before its next start, or after it.
    """
    for number in range(_MOST):
        service = SERVICES[name](folder / "service")
        last = disk.syncs + number + 1
        disk.fail_sync(number)
        done, failed = _acknowledged(service.steps)
        disk.heal()
        if disk.syncs < last:
            service.close()
            return number
        if failed is not None:
            assert isinstance(failed, DiskFailed), f"sync {number}: {failed!r}"
            for step in service.steps[done:]:
                assert _acknowledged([step])[0] == 0, f"sync {number} failed, and a step after {done} is acknowledged"
        service.close()
        at = f"failed sync {number}"
        if number % 2:
            service.check(folder / "service", done)  # the next start, whose memory still has what the disk dropped
            at = f"the start after {at}"
        _checked(service, disk, done, at, names_survive=bool(number // 2 % 2))
        shutil.rmtree(folder / "service")
    raise AssertionError("there is no end of syncs")


def full_disk(disk: Disk, folder: Path, name: str) -> int:
    """One write after the other is short and then finds no room; how many there were."""
    number = 0
    while True:
        service = SERVICES[name](folder / "service")
        disk.fail_write(number, errno.ENOSPC)
        done, failed = _acknowledged(service.steps)
        disk.heal()
        service.close()
        _checked(service, disk, done, f"full disk at write {number}", names_survive=bool(number % 2))
        service.check(folder / "service", done)
        shutil.rmtree(folder / "service")
        if failed is None:
            return number
        # Each of the first few, then every so many: a round writes hundreds of pages.
        number += 1 + number // 2


def main(scenario: str, folder: Path, names: Sequence[str]) -> None:
    """Runs one scenario for each service, in one process: to import them takes longer than most of them do."""
    run = {"power_cuts": power_cuts, "failing_syncs": failing_syncs, "full_disk": full_disk}[scenario]
    for name in names or SERVICES:
        own = folder / name.replace(" ", "-")
        own.mkdir()
        began = time.monotonic()
        try:
            done = run(Disk(own), own, name)
            sys.stdout.write(f"{name} {done} {time.monotonic() - began:.1f} s\n")
        except BaseException as error:
            error.add_note(f"{scenario} of {name}")
            raise


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
