"""What an app hears while its device learns: contributions, reasons and outages, each once."""

from __future__ import annotations

from collections.abc import Iterator

from device_runtime.host.learned import wait_for
from odp.errors import OdpError, ServiceUnavailable

NO_ROUND = ("idle", "no round of population 'films' is open now")


class Host:
    """A host whose looks have these reasons, the last of which is its end."""

    def __init__(self, *reasons: tuple[str, str], outages: tuple[OdpError | None, ...] = ()) -> None:
        self._reasons: Iterator[tuple[str, str]] = iter(reasons)
        self._left, self._outages = len(reasons), iter(outages)
        self.reason, self.outage = ("idle", ""), None

    def join(self, timeout: float | None = None) -> bool:
        self.reason = next(self._reasons)
        self.outage = next(self._outages, None)  # type: ignore[assignment]
        self._left -= 1
        return not self._left


def heard(host: Host) -> list[str]:
    lines: list[str] = []
    wait_for(host, lines.append, dict)
    return lines


def test_a_wait_for_the_server_is_said_once_and_a_gap_between_rounds_is_not() -> None:
    """A call of `learn` after the last round was silent for all of its ten minutes."""
    waits = ("waits", "round 1 of task 'films' waits for others")
    assert heard(Host(*[NO_ROUND] * 60)) == [f"{NO_ROUND[1]}; the device waits for one"]
    assert heard(Host(NO_ROUND, NO_ROUND, waits, NO_ROUND, NO_ROUND, waits)) == [waits[1]] * 2
    assert heard(Host(*[("idle", "")] * 20)) == []


def test_an_outage_is_said_once() -> None:
    down = ServiceUnavailable("127.0.0.1:7200 does not answer")
    lines = heard(Host(*[("idle", "")] * 6, outages=(None, down, down, None, down)))
    assert lines == ["127.0.0.1:7200 does not answer; the device tries again"] * 2
