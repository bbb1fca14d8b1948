"""A developer's private handler hides bits in the kernel for their public handler, whose answer an app is told.

Each channel moved its bits where the kernel answers; here every one has to be at chance. Sixteen bits are sent three
times, after a known preamble that the receiver learns the channel from. By chance 24 of the 48 are right; the bounds
below are passed by a channel that carries nothing with a probability of 7e-7.
"""

from __future__ import annotations

import platform
import random
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from device_runtime.isolated import Asked, CallLimits, IsolatedHost, MemoryStore, ServiceCode

SERVICE = Path(__file__).resolve().parent / "services" / "channels.py"
BITS, TRIALS, PREAMBLE = 16, 3, [0, 1] * 5
FEWEST, MOST = 8, 40
NOW = 1_000_000.0

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="the attacks have the numbers of Linux on x86-64"
)


@pytest.fixture(scope="module")
def smuggler() -> Iterator[IsolatedHost]:
    limits = CallLimits(seconds=120.0, processor_seconds=120, failures=1000)
    with IsolatedHost(ServiceCode.load(SERVICE), limits=limits) as host:
        yield host


class Between(MemoryStore):
    """A store that does something whenever the private handler reads."""

    def __init__(self, do: Callable[[str], bytes | None]) -> None:
        super().__init__()
        self._do = do

    def get(self, key: str) -> bytes | None:
        return self._do(key)


def hide(host: IsolatedHost, channel: str, bits: list[int], do: Callable[[str], bytes | None]) -> None:
    """Has the private handler send ``bits``."""
    store = Between(do)
    asked = Asked(store.add_request("app", {}, time=NOW), "app", {"channel": channel, "bits": "".join(map(str, bits))})
    host.execute(store, asked, now=NOW)


def find(host: IsolatedHost, channel: str, numbers: list[int]) -> list[float]:
    """What the public handler tells the app; nothing that the kernel refused is anything but 0."""
    answer = host.request(MemoryStore(), "app", {"channel": channel, "numbers": numbers}, now=NOW)
    assert isinstance(answer, Asked)
    return [float(value or 0) for value in answer.work["found"]]


def sent_in_turn(host: IsolatedHost, channel: str, bits: list[int]) -> list[int]:
    """The bits as they are received, each measured right after it was hidden."""
    told: list[float] = []

    def measure(key: str) -> None:
        told.extend(find(host, channel, [int(key)]))

    # Each bit comes after a zero, as what the kernel counts may only ever grow, or drift.
    frame = [half for bit in [*PREAMBLE, *bits] for half in (0, bit)]
    hide(host, channel, frame, measure)
    assert len(told) == len(frame)
    found = [after - before for before, after in zip(told[::2], told[1::2], strict=True)]
    levels = [statistics.median(found[bit : len(PREAMBLE) : 2]) for bit in (0, 1)]
    # What the machine does beside it makes a signal smaller more often than it makes one.
    threshold = 0.7 * levels[0] + 0.3 * levels[1]
    return [int((value - threshold) * (levels[1] - levels[0]) > 0) for value in found[len(PREAMBLE) :]]


def sent_at_once(host: IsolatedHost, channel: str, bits: list[int]) -> list[int]:
    """The bits as they are received while the private handler goes on sending them."""
    entered, over = threading.Event(), threading.Event()

    def going_on(key: str) -> bytes | None:
        entered.set()
        return None if over.is_set() else b"yes"

    with ThreadPoolExecutor(1) as pool:
        private = pool.submit(hide, host, channel, bits, going_on)
        try:
            assert entered.wait(60.0)
            return [int(value) for value in find(host, channel, list(range(len(bits))))]
        finally:
            over.set()
            private.result(60.0)


@pytest.mark.parametrize(
    ("channel", "sent"),
    [
        ("pages in memory", sent_in_turn),
        ("page faults", sent_in_turn),
        ("times of page faults", sent_in_turn),
        ("free memory", sent_in_turn),
        ("inode numbers", sent_in_turn),
        ("shared words", sent_at_once),
    ],
)
@pytest.mark.slow
def test_a_private_handler_hides_nothing_in_the_kernel_that_a_public_one_finds(
    smuggler: IsolatedHost, channel: str, sent: Callable[[IsolatedHost, str, list[int]], list[int]]
) -> None:
    drawn = random.Random(20261122)
    right = 0
    for _ in range(TRIALS):
        bits = [drawn.randrange(2) for _ in range(BITS)]
        right += sum(a == b for a, b in zip(sent(smuggler, channel, bits), bits, strict=True))
    assert FEWEST <= right <= MOST, f"{right} of {TRIALS * BITS} bits came through"
