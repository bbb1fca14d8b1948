"""What happens while a device takes its turns, in lines for its app: nothing here depends on the device's data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from device_runtime.host.learned import Ended, Taken, why

#: How often a host is asked whether it has ended; a look at the store as well opens its file.
_SLICE_SECONDS, _LOOK_SECONDS = 0.2, 1.0
#: The kind of reason of a host that only waits for the server: news after some looks, since each round has such a gap.
_IDLE, _IDLE_LOOKS = "idle", 5


class Host(Ended, Protocol):
    """``device_runtime.host.program.Running`` is one."""

    def join(self, timeout: float | None = None) -> bool:
        """Whether it has ended within that many seconds."""
        ...


def wait_for(
    host: Host, say: Callable[[str], None] | None, contributions: Callable[[], Mapping[tuple[bytes, int], Taken]]
) -> None:
    """Waits in slices until a host has ended, so that Ctrl-C is handled after one slice.

    Args:
      host: of one device.
      say: gets a line for each contribution, for each new reason why there is none, and for each new outage; None gets
        nothing.
      contributions: that the device made so far, as ``device_runtime.host.learned.contributions_of`` reads them.

    Raises whatever ended the host.
    """
    if say is None:
        while not host.join(_SLICE_SECONDS):
            pass
        return
    before, reason, ended = contributions(), (_IDLE, ""), False
    idle, outage = 0, ""
    while not ended:
        ended = host.join(_LOOK_SECONDS)
        now = contributions()
        for key in (key for key in now if key not in before):
            say(f"contributed to round {now[key].round} of task {now[key].task!r}")
        before = now
        if host.reason != reason and host.reason[0] != _IDLE:
            say(why(host.reason))
        reason = host.reason
        idle = idle + 1 if reason[0] == _IDLE and reason[1] else 0
        if idle == _IDLE_LOOKS and not ended:
            say(f"{why(reason)}; the device waits for one")
        if (trouble := str(host.outage or "")) != outage and trouble and not ended:
            say(f"{trouble}; the device tries again")
        outage = trouble
