"""A service's template and the process of its next call: one lane for calls that may see private data, one for others.

What a call's process can find out about its lane (how long the call before took, when that ended, how many there were)
says something of the other calls of that lane. What is told to an app comes from calls of a lane of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from device_runtime.isolated.code import ServiceCode
from device_runtime.isolated.limits import CallLimits
from device_runtime.isolated.process import CallProcess, Template, locked
from odp.errors import StateError


class Lane:
    """Makes processes, one call at a time: every method but ``close`` is for who holds ``lock``.

    Args:
      code: the developer's modules.
      limits: of every call.
      check: told what holds of a process before it is given anything; raises StateError where that is too little.
    """

    def __init__(self, code: ServiceCode, limits: CallLimits, check: Callable[[tuple[str, ...]], None]) -> None:
        self.lock = threading.Lock()
        self.template: Template | None = None
        self._code, self._limits, self._check = code, limits, check
        self._spare: CallProcess | None = None

    def restrictions(self) -> tuple[str, ...]:
        """What holds of the process of the next call. Raises StateError."""
        return self._prepared().held or ()

    def take(self) -> CallProcess:
        """The process of one call: restricted, and given nothing yet. Raises StateError."""
        process = self._prepared()
        self._spare = None
        return process

    def end(self, used: CallProcess) -> None:
        """Kills a used process, and has the next one made ready."""
        if self.template is None:
            return
        try:
            self.template.end(used)
            self._spare = self.template.fork()
        except StateError:
            self.stop()

    def failed(self, used: CallProcess, *, ended: bool) -> int:
        """Kills a process whose call failed; where it ``ended`` by itself, the signal that ended it, or 0."""
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
        """Ends all processes, once the call that runs has ended. A later call starts them again."""
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
        if self.template is None:
            self.template = Template(self._code, self._limits)
        if self._spare is None:
            self._spare = self.template.fork()
        if self._spare.held is None:
            self._spare.held = locked(self._spare)
        return self._spare
