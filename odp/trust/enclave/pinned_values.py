"""The person's reference values, read again when their file changes: an upgrade of an enclave needs no restart here.

Roots, images, policies and addresses of a new file hold from the next check on, and what was verified under the old
ones is verified again. What is bound to files of the host (the log, the populations, helpers, the vendor of emulated
devices) stays as at the start: a change of these is reported, and waits for a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from odp.errors import OdpError
from odp.transport.logs import Log
from odp.trust.enclave.reference_values import ReferenceValues

_OF_A_START = ("log", "populations", "helper_keys", "emulated_vendor")


class PinnedValues:
    """The reference values in a file; a call gives the newest that could be read. Thread-safe.

    Args:
      path: the file.
      log: a new file is reported there, and one that cannot be read.

    Raises:
      ConfigurationError: the file is missing or malformed, at the start. Later, the values of before stay.
    """

    def __init__(self, path: Path, *, log: Log) -> None:
        self._path, self._log = path, log
        self._lock = threading.Lock()
        self._stamp = _stamp(path)
        self._values = ReferenceValues.load(path)

    def __call__(self) -> ReferenceValues:
        with self._lock:
            if (stamp := _stamp(self._path)) != self._stamp:
                self._stamp = stamp
                self._read()
            return self._values

    def _read(self) -> None:
        try:
            values = ReferenceValues.load(self._path)
        except OdpError as error:
            self._log.warning("reference_values_unreadable", reason=str(error))
            return
        before, self._values = self._values, values
        later = [name for name in _OF_A_START if getattr(before, name) != getattr(values, name)]
        if values != before:
            self._log.event("reference_values_read", images=sum(map(len, values.image_digests.values())))
        if later:
            self._log.warning("reference_values_need_a_restart", of=",".join(later))


class PinnedAddressesOf(Mapping[str, tuple[str, ...]]):
    """The addresses of the newest reference values, by role."""

    def __init__(self, values: PinnedValues) -> None:
        self._values = values

    def __getitem__(self, role: str) -> tuple[str, ...]:
        return self._values().addresses[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values().addresses)

    def __len__(self) -> int:
        return len(self._values().addresses)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
