"""A service's template and the process of its next call: one lane for private calls, one for all others.

What a call's process can find out about its lane (how long the call before took, when that ended, how many there were)
says something of the other calls of that lane. Answers to apps come from calls of a separate lane.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from device_runtime.isolated.code import ServiceCode
from device_runtime.isolated.limits import CallLimits
from device_runtime.isolated.process import CallProcess, Template, locked
from odp.errors import StateError


class Lane:
    """Creates processes for one call at a time. The holder of ``lock`` may call every method, others only ``close``.

    Args:
      code: the developer's modules.
      limits: of every call.
      check: a callback with the restrictions of a process before it gets any data; raises StateError if they are too
        few.
    """

    def __init__(self, code: ServiceCode, limits: CallLimits, check: Callable[[tuple[str, ...]], None]) -> None:
        self.lock = threading.Lock()
        self.template: Template | None = None
        self._code, self._limits, self._check = code, limits, check
        self._spare: CallProcess | None = None

    def restrictions(self) -> tuple[str, ...]:
        """Restrictions of the process of the next call. Raises StateError."""
        return self._prepared().held or ()

    def take(self) -> CallProcess:
        """The process of one call: restricted, and without any data yet. Raises StateError."""
        process = self._prepared()
        self._spare = None
        return process

    def end(self, used: CallProcess) -> None:
        """Kills a used process, and prepares the next one."""
        if self.template is None:
            return
        try:
            self.template.end(used)
            self._spare = self.template.fork()
        except StateError:
            self.stop()

    def failed(self, used: CallProcess, *, ended: bool) -> int:
        """Kills the process of a failed call; the signal that ended it if it ``ended`` by itself, or 0."""
        if self.template is None:
            return 0
        try:
            if ended:
                return self.template.signal_of(used)
            self.template.end(used)
        except StateError:
            self.stop()
        return 0

    def close(self) -> None:
        """Ends all processes after the current call. A later call starts them again."""
        with self.lock:
            self.stop()

    def stop(self) -> None:
        """Ends all processes."""
        if self._spare is not None:
            self._spare.channel.close()
            self._spare = None
        if self.template is not None:
            self.template.close()
            self.template = None

    def _prepared(self) -> CallProcess:
        try:
            process = self._locked()
        except StateError:
            # The template may have ended since the last call; a new one has one attempt.
            self.stop()
            process = self._locked()
        try:
            self._check(process.held or ())
        except StateError:
            self.stop()
            raise
        return process

    def _locked(self) -> CallProcess:
        if self.template is not None and self.template.ended:
            # Its spare process may have reported its restrictions, and is about to be killed.
            self.stop()
        if self.template is None:
            self.template = Template(self._code, self._limits)
        if self._spare is None:
            self._spare = self.template.fork()
        if self._spare.held is None:
            self._spare.held = locked(self._spare)
        return self._spare
