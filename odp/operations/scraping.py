"""Examines a program through its metrics endpoint: version, clock, disk."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from prometheus_client.parser import text_string_to_metric_families

import odp
from odp.errors import ServiceError, ServiceUnavailable
from odp.operations.findings import Finding
from odp.transport.channel import parse_address
from odp.transport.statuses import one_line

#: Seconds that a program's clock may be apart from the one here: more is a warning, and above a minute a failure.
CLOCK_SECONDS = 5.0
_CLOCK_FAILS = 60.0
_SECONDS = 5.0
_MOST_BYTES = 4 * 2**20
_LEAST_FREE = 2**30


@dataclass(frozen=True)
class Scraped:
    """What an endpoint answered: ``samples`` by name, with labels; ``date`` is the header, empty without one."""

    samples: Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
    date: str

    def labels(self, name: str) -> Mapping[str, str]:
        """The labels of the one sample ``name``; none where there is none."""
        samples = self.samples.get(name, ())
        return samples[0][0] if samples else {}

    def value(self, name: str) -> float | None:
        """The value of the one sample ``name``."""
        samples = self.samples.get(name, ())
        return samples[0][1] if samples else None


def scrape(address: str) -> Scraped:
    """Reads the endpoint ``address`` (host:port), of which nothing is trusted.

    Raises ServiceUnavailable where it does not answer, ServiceError where the answer is none of a program of ODP.
    """
    host, port = parse_address(address)
    connection = http.client.HTTPConnection(host.strip("[]"), port, timeout=_SECONDS)
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    try:
        connection.request("GET", "/metrics")
        reply = connection.getresponse()
        text = reply.read(_MOST_BYTES).decode("utf-8")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((dict(sample.labels), float(sample.value)))
    except (OSError, http.client.HTTPException) as error:
        raise ServiceUnavailable(f"no metrics at {address}: {one_line(str(error))}") from error
    except ValueError as error:
        raise ServiceError(f"{address} answered something else than metrics: {one_line(str(error))}") from error
    finally:
        connection.close()
    if reply.status != http.client.OK or "odp_info" not in samples:
        raise ServiceError(f"{address} is no program of ODP")
    return Scraped(samples, reply.getheader("Date", ""))


def examine_metrics(address: str, *, clock: Callable[[], float] = time.time) -> Iterator[Finding]:
    """The findings of the endpoint ``address`` (`--metrics` of a program)."""
    subject = f"metrics {address}"
    started = clock()
    try:
        scraped = scrape(address)
    except ServiceError as error:
        yield Finding(
            subject, "reachable", "failure", str(error),
            "start the program with --metrics at this address, or look at its log",
        )  # fmt: skip
        return
    here, labels = (started + clock()) / 2, scraped.labels("odp_info")
    subject = f"{labels.get('program', 'program')} (metrics {address})"
    yield _version(subject, labels.get("version", ""))
    yield _clock(subject, scraped.date, here)
    yield _disk(subject, scraped.value("odp_disk_free_bytes"))


def _version(subject: str, version: str) -> Finding:
    if version != odp.__version__:
        return Finding(
            subject, "version", "warning", f"{one_line(version)}; this command is {odp.__version__}",
            "run the same version everywhere; enclaves change as docs/operations.md says",
        )  # fmt: skip
    return Finding(subject, "version", "ok", version)


def _clock(subject: str, date: str, here: float) -> Finding:
    try:
        apart = parsedate_to_datetime(date).timestamp() - here
    except ValueError:
        return Finding(subject, "clock", "not examined", "the answer had no date")
    # A date has whole seconds.
    apart = 0.0 if -1.0 <= apart <= 0.0 else apart
    if abs(apart) <= CLOCK_SECONDS:
        return Finding(subject, "clock", "ok", "as the one here")
    return Finding(
        subject, "clock", "failure" if abs(apart) > _CLOCK_FAILS else "warning",
        f"{abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} the one here", "set both clocks (NTP)",
    )  # fmt: skip


def _disk(subject: str, free: float | None) -> Finding:
    if free is None:
        return Finding(subject, "disk", "not examined", "it tells nothing of its disk")
    if free < _LEAST_FREE:
        return Finding(
            subject, "disk", "warning", f"{free / 2**20:,.0f} MiB free", "free some space: below 16 MiB nothing starts"
        )
    return Finding(subject, "disk", "ok", f"{free / 2**30:,.1f} GiB free")
