"""Unary encoding: one of many categories as bits that are flipped, for histograms of local reports.

A person's category, one of k, is a vector of k bits with a single 1. Each bit is sent as 1 with probability p where it
is 1 and with probability q where it is 0, independently. For any two inputs, none included, and any report

    P(report | x) / P(report | x')  <=  p (1 - q) / (q (1 - p))  =  exp(epsilon)

since the vectors of two categories differ in two bits. p and q are multiples of 2^-64, compared exactly with random
words, and the stated epsilon is that of these integers.

- ``optimized``: p = 1/2, q = 1 / (e^epsilon + 1). Its variance hardly depends on k, so that it is better than k-RR
  (``randomized_response.RandomizedResponse``) where k > 3 e^epsilon + 2.
- ``symmetric``: p = 1 - q = 1 / (1 + e^(-epsilon / 2)), the permanent response of RAPPOR without hashing; RAPPOR's f is
  2 q.

An input of -1 says "no data": all bits are 0 before they are flipped, so that a device without data sends a report like
any other, and the estimated frequencies are of all devices.

Sources: Wang, Blocki, Li, Jha 2017, "Locally Differentially Private Protocols for Frequency Estimation", sections 4.2
and 4.3; Erlingsson, Pihur, Korolova 2014, "RAPPOR", section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np

from odp import _validate
from odp.errors import ConfigurationError, DataError
from odp.numerics.arrays import Float64Array, Int64Array, UInt8Array
from odp.privacy.mechanisms.random_source import WHOLE, RandomSource
from odp.privacy.mechanisms.randomized_response import (
    LARGEST_EPSILON,
    SMALLEST_EPSILON,
    categories,
    check_length,
    rounded_up,
)

#: A report has a bit for each.
MOST_BITS = 2**16
NO_DATA = -1

_BLOCK = 1 << 20  # bits that are unpacked at once


@dataclass(frozen=True, kw_only=True)
class UnaryEncoding:
    """The mechanism of one histogram.

    Attributes:
      choices: categories are 0 .. choices - 1; from 2 to 65,536.
      asked: the epsilon that was asked for, from 1e-6 to 32.
      kind: "optimized" or "symmetric".
      one: p in units of 2^-64, an integer.
      zero: q in units of 2^-64, an integer.
    """

    choices: int
    asked: float
    kind: Literal["optimized", "symmetric"] = "optimized"
    one: int = field(init=False)
    zero: int = field(init=False)

    def __post_init__(self) -> None:
        _validate.integer(low=2, high=MOST_BITS, choices=self.choices)
        _validate.within(low=SMALLEST_EPSILON, high=LARGEST_EPSILON, epsilon=self.asked)
        _validate.one_of(("optimized", "symmetric"), kind=self.kind)
        halves = 1 if self.kind == "optimized" else 2
        # exp() is off by an ulp or so, 2^-52 relative: 2^-50 less keeps the true epsilon below the asked one.
        odds = Fraction(math.exp(self.asked / halves)) * (1 - Fraction(1, 2**50))
        zero = math.ceil(WHOLE / (1 + odds))
        object.__setattr__(self, "zero", zero)
        object.__setattr__(self, "one", WHOLE // 2 if halves == 1 else WHOLE - zero)

    @property
    def ratio(self) -> Fraction:
        """exp(epsilon), exactly: the largest ratio of the probabilities of a report under two inputs."""
        return Fraction(self.one * (WHOLE - self.zero), self.zero * (WHOLE - self.one))

    @property
    def epsilon(self) -> float:
        """The true epsilon, rounded up; at most ``asked``."""
        return min(rounded_up(self.ratio), self.asked)

    @property
    def report_bytes(self) -> int:
        """Size of one report."""
        return -(-self.choices // 8)

    def randomize(self, truths: Int64Array, *, source: RandomSource) -> UInt8Array:
        """Private reports, uint8 [n, report_bytes]: category j is bit j % 8 of byte j // 8.

        Args:
          truths: from 0 to choices - 1, or -1 for no data, int64 [n].
          source: of the coins.

        Raises:
          ConfigurationError: a truth is out of range; the message does not show it.
        """
        truths = categories(truths, self.choices, none=NO_DATA)
        reports = np.empty((len(truths), self.report_bytes), dtype=np.uint8)
        for block in self._blocks(len(truths)):
            block_truths = truths[block]
            bits = source.coins(self.zero, len(block_truths) * self.choices).reshape(len(block_truths), self.choices)
            true_bits = source.coins(self.one, len(block_truths))  # for no data, too
            with_data = np.flatnonzero(block_truths >= 0)
            bits[with_data, block_truths[with_data]] = true_bits[with_data]
            reports[block] = np.packbits(bits, axis=1, bitorder="little")
        return reports

    def counts(self, reports: UInt8Array) -> Int64Array:
        """How many reports have each bit set, int64 [choices].

        Raises:
          ConfigurationError: reports are of another size.
        """
        if reports.ndim != 2 or reports.shape[1] != self.report_bytes or reports.dtype != np.uint8:
            raise ConfigurationError(
                f"Expected reports as uint8 [n, {self.report_bytes}] (got {reports.dtype} {list(reports.shape)})"
            )
        total = np.zeros(self.choices, dtype=np.int64)
        for block in self._blocks(len(reports)):
            bits = np.unpackbits(reports[block], axis=1, count=self.choices, bitorder="little")
            total += bits.sum(axis=0, dtype=np.int64)
        return total

    def estimate(self, counts: Int64Array, n: int) -> Float64Array:
        """Unbiased frequencies of the categories among ``n`` reports, float64 [choices]; some may be below 0.

        Raises:
          ConfigurationError: another number of counts than choices, or ``n`` is not positive.
        """
        check_length(counts=len(counts), choices=self.choices)
        _validate.integer(low=1, high=2**62, n=n)
        return np.asarray((np.asarray(counts) / n - self.zero / WHOLE) / self._apart)

    def variance(self, frequencies: Float64Array, n: int) -> Float64Array:
        """The exact variance of ``estimate`` from ``n`` reports where the truths have ``frequencies``, [choices].

        Raises:
          ConfigurationError: another number of frequencies than choices, or ``n`` is not positive.
        """
        check_length(frequencies=len(frequencies), choices=self.choices)
        _validate.integer(low=1, high=2**62, n=n)
        h = np.asarray(frequencies, dtype=np.float64)
        of_one, of_zero = (bit * (WHOLE - bit) / WHOLE**2 for bit in (self.one, self.zero))
        return np.asarray((h * of_one + (1 - h) * of_zero) / (n * self._apart**2))

    def to_bytes(self, reports: UInt8Array) -> bytes:
        """Reports as they are sent."""
        return reports.tobytes()

    def from_bytes(self, data: bytes) -> UInt8Array:
        """Reports that were sent, uint8 [n, report_bytes].

        Raises:
          DataError: ``data`` is not of whole reports, or a bit that belongs to no category is set.
        """
        if len(data) % self.report_bytes:
            raise DataError(f"Expected reports of {self.report_bytes} bytes each (got {len(data)} bytes)")
        reports = np.frombuffer(data, dtype=np.uint8).reshape(-1, self.report_bytes)
        if self.choices % 8 and (reports[:, -1] >> (self.choices % 8)).any():
            raise DataError(f"Expected no bit beyond those of {self.choices} categories")
        return reports

    @property
    def _apart(self) -> float:
        """p - q."""
        return (self.one - self.zero) / WHOLE

    def _blocks(self, n: int) -> list[slice]:
        rows = max(1, _BLOCK // self.choices)
        return [slice(start, start + rows) for start in range(0, n, rows)]
