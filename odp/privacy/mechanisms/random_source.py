"""Random numbers of local randomizers, many at once: words, coins, exponentials, uniforms, normals, discrete Laplace.

Every number comes from one key of 32 bytes, which ``OperatingSystemNoise`` gives (``os.urandom``), through the key
stream of AES-256 in counter mode (NIST SP 800-38A). The stream is several times as fast as the system's generator, and
whoever tells them apart breaks AES. A test injects a ``NoiseSource`` that repeats; there is no other way to a seed.

What is exact, and what is not:

- words, integers and coins are exact on the stream: a coin is a comparison of 64-bit integers, integers are drawn with
  rejection.
- ``discrete_laplace`` is within a *factor* ``exp(+-LAPLACE_CLOSENESS)`` of its law for every integer, without a largest
  one: a pure epsilon stays pure.
- exponentials and ``tails`` have no largest number: more bits are drawn where the first ones are all 0, so that an
  event of any small probability occurs with that probability.
- uniforms have 52 bits: for rounding, never for an event whose probability may be small.
- normals have 51 bits and no largest number. Their density is within a factor ``exp(+-NORMAL_CLOSENESS)`` of its law.

Run time depends on the numbers drawn (redraws), not on what they are used for.

Sources: Canonne, Kamath, Steinke 2020, algorithm 2 (discrete Laplace); Marsaglia, Tsang 2000 (ziggurat).
"""

from __future__ import annotations

import functools
import math
import os
import threading

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from odp import _validate
from odp.errors import PrivacyError
from odp.numerics.arrays import BoolArray, Float64Array, Int64Array, UInt64Array
from odp.privacy.mechanisms.discrete_gaussian import NoiseSource, OperatingSystemNoise

#: In units of which a probability is given to ``coins``.
WHOLE = 1 << 64
MOST_NUMBERS = 2**28
LARGEST_SCALE = 2**40
#: Every probability of ``discrete_laplace`` is within a factor exp(+-) of this from its law, for shifts of at most
#: 2^10 scales. The parts: 2^-51 for the exponential in the coin, 2^-62 for each scale.
LAPLACE_CLOSENESS = 2.0**-49
#: Of the density of ``normals``: 256 layers and 52 bits of a place are exact, and a wedge is decided to 2^-52 of what
#: is under the curve there.
NORMAL_CLOSENESS = 2.0**-46

_KEY_BYTES = 32
_BUFFER = 512  # words
_CHUNK = 1 << 15  # numbers per pass: the temporaries of one pass stay in the processor's cache
_BITS = 52
_LAYERS = 256
_EDGE = 3.654152885361009  # where the tail of the 256 layers begins
_AREA = 0.00492867323399  # of each layer
_E_INVERSE = 0x5E2D58D8B3BCDF1A  # 2^64 / e, rounded down


class RandomSource(threading.local):
    """A stream of secret random numbers, for any number of threads: each thread, and a forked process, has its own key.

    Devices of one host share what computes for a task: two threads on one stream could get the same numbers.

    Args:
        source: gives the key; the operating system's unless a test says otherwise.

    Raises:
        PrivacyError: ``source`` gave another number of bytes than asked.
    """

    def __init__(self, source: NoiseSource | None = None) -> None:
        self._source = OperatingSystemNoise() if source is None else source
        self._words: UInt64Array = np.empty(0, dtype=np.uint64)
        self._used = 0
        self._rekey()

    def random_bytes(self, count: int) -> bytes:
        """``count`` bytes: a stream is a ``NoiseSource`` for what takes one."""
        return self.words(-(-count // 8)).tobytes()[:count]

    def __reduce__(self) -> str:
        raise TypeError("A RandomSource is not copied: two copies would give the same numbers")

    def words(self, count: int) -> UInt64Array:
        """Uniform 64-bit words, uint64 [count]."""
        _validate.integer(low=0, high=MOST_NUMBERS, count=count)
        if os.getpid() != self._process:
            self._rekey()
        left = len(self._words) - self._used
        if count <= left:
            words: UInt64Array = self._words[self._used : self._used + count]
            self._used += count
            return words
        rest = count - left
        fresh = self._stream_words(max(rest, _BUFFER))
        words = np.concatenate((self._words[self._used :], fresh[:rest])) if left else fresh[:rest]
        # A large request leaves no view of it behind: the buffer keeps what is left alone.
        self._words, self._used = (fresh, rest) if rest < _BUFFER else (fresh[:0], 0)
        return words

    def below(self, high: int, count: int) -> Int64Array:
        """Uniform integers from 0 to ``high`` - 1, int64 [count], exactly.

        Raises:
            ConfigurationError: ``high`` is not a whole number from 1 to 2^63.
        """
        _validate.integer(low=1, high=2**63, high_of_range=high)
        words = self.words(count)
        if high & (high - 1) == 0:
            return (words & np.uint64(high - 1)).astype(np.int64)
        most = np.uint64(WHOLE - WHOLE % high - 1)  # the last word of the last whole range
        refused = np.flatnonzero(words > most)
        if len(refused):
            words = words.copy()
            while len(refused):
                words[refused] = self.words(len(refused))
                refused = refused[words[refused] > most]
        return (words % np.uint64(high)).astype(np.int64)

    def coins(self, chance: int | UInt64Array, count: int) -> BoolArray:
        """Independent coins, bool [count], true with probability ``chance`` / 2^64 exactly.

        Args:
            chance: from 0 to 2^64, or one for each coin, uint64 [count].

        Raises:
            ConfigurationError: ``chance`` is out of range.
        """
        if isinstance(chance, np.ndarray):
            return self.words(count) < chance
        _validate.integer(low=0, high=WHOLE, chance=chance)
        if chance == WHOLE:
            return np.ones(count, dtype=np.bool_)
        # 16 bits decide all but one coin in 65,536, whose other 48 bits are drawn when they are needed.
        first = self.words(-(-count // 4)).view(np.uint16)[:count]
        heads = first < chance >> 48
        tied = np.flatnonzero(first == chance >> 48)
        heads[tied] = self.words(len(tied)) >> np.uint64(16) < np.uint64(chance % 2**48)
        return heads

    def uniforms(self, count: int) -> Float64Array:
        """Uniform numbers within (0, 1), float64 [count]: odd multiples of 2^-53."""
        return ((self.words(count) >> np.uint64(64 - _BITS)).astype(np.float64) + 0.5) * 2.0**-_BITS

    def exponentials(self, count: int) -> Float64Array:
        """-log U of uniform numbers U in (0, 1], float64 [count]: without a largest one, 53 bits of U however small."""
        words = self.words(count)
        uniform = words.astype(np.float64)
        zeros = np.zeros(count)
        # A word of few bits, one in 2,048, goes on behind its point; one of none goes on as a word.
        short = np.flatnonzero(words < np.uint64(1 << 53))
        while len(short):
            further = self.words(len(short))
            none = uniform[short] == 0.0
            uniform[short] = np.where(none, further.astype(np.float64), uniform[short] + _behind_the_point(further))
            zeros[short] += none
            short = short[none & (further < np.uint64(1 << 53))]
        return np.asarray(zeros * (64.0 * math.log(2.0)) - np.log(uniform * 2.0**-64))

    def tails(self, count: int) -> Int64Array:
        """How often a fair coin falls on tails before heads, int64 [count], exactly and without a largest number."""
        words = self.words(count)
        tails: Int64Array = np.bitwise_count((words & -words) - np.uint64(1)).astype(np.int64)
        further = np.flatnonzero(words == 0)
        if len(further):
            tails[further] += self.tails(len(further))
        return tails

    def normals(self, count: int) -> Float64Array:
        """Standard normals, float64 [count], for directions: floating-point numbers, so never noise of a guarantee."""
        _validate.integer(low=0, high=MOST_NUMBERS, count=count)
        out = np.empty(count)
        for start in range(0, count, _CHUNK):
            self._fill_normals(out[start : start + _CHUNK])
        return out

    def discrete_laplace(self, scale: int, count: int) -> Int64Array:
        """Integers n with probability proportional to exp(-|n| / scale), int64 [count].

        A sum of integers that one person moves by at most D is private with the pure
        epsilon = D / scale + 2 ``LAPLACE_CLOSENESS``.

        Args:
            scale: in grid steps, from 1 to 2^40. Choose a fine grid where the scale is not whole, and round it up.

        Raises:
            ConfigurationError: ``scale`` is out of range.
        """
        _validate.integer(low=1, high=LARGEST_SCALE, scale=scale)
        _validate.integer(low=0, high=MOST_NUMBERS, count=count)
        out = np.empty(count, dtype=np.int64)
        for start in range(0, count, _CHUNK):
            part = out[start : start + _CHUNK]
            missing = len(part)
            while missing:
                # One in three candidates is refused, fewer by the sign of zero: a few more make a second pass rare.
                accepted = self._laplace_candidates(scale, missing + missing // 2 + missing // 8 + 16)[:missing]
                place = len(part) - missing
                part[place : place + len(accepted)] = accepted
                missing -= len(accepted)
        return out

    def _rekey(self) -> None:
        key = self._source.random_bytes(_KEY_BYTES)
        if len(key) != _KEY_BYTES:
            raise PrivacyError(f"The noise source gave {len(key)} bytes instead of {_KEY_BYTES}: nothing was drawn")
        self._process = os.getpid()
        self._stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        self._words, self._used = self._words[:0], 0

    def _stream_words(self, count: int) -> UInt64Array:
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")

    def _laplace_candidates(self, scale: int, count: int) -> Int64Array:
        """What is accepted of ``count`` candidates: independent of each other, so that any first ones may be taken."""
        rest = self.below(scale, count)
        # The coin of probability exp(-rest / scale), down to a multiple of 2^-64; below 2^64 for all but rest = 0.
        chance = np.ldexp(np.exp(-rest / scale), 64)
        sure = chance >= 2.0**64
        accepted = sure | self.coins(np.where(sure, 0.0, chance).astype(np.uint64), count)
        number = rest[accepted]
        # Whole scales: as many as coins of probability 1/e fall in a row.
        going = np.arange(len(number))
        while len(going):
            going = going[self.coins(_E_INVERSE, len(going))]
            number[going] += scale
        negative = self.words(len(number)) >> np.uint64(63) == 1
        single = ~negative | (number > 0)  # zero has one sign
        signed: Int64Array = np.where(negative, -number, number)[single]
        return signed

    def _fill_normals(self, out: Float64Array) -> None:
        """The ziggurat: a layer, then a place in it, which is under the curve but for 1.2 % of the draws."""
        widths, inner = _layers()[:2]
        words = self.words(len(out))
        layer = (words & np.uint64(_LAYERS - 1)).astype(np.intp)
        place = words.view(np.int64) >> np.int64(12)  # 52 bits with its sign; the layer's 8 bits are none of them
        np.multiply(place, widths[layer], out=out)
        pending = np.flatnonzero(np.abs(place) >= inner[layer])
        if len(pending):
            out[pending] = self._edge_normals(out[pending], layer[pending])

    def _edge_normals(self, value: Float64Array, layer: np.ndarray[tuple[int, ...], np.dtype[np.intp]]) -> Float64Array:
        """Decides draws that may be above the curve: the tail beyond the last layer, wedges, and new draws."""
        heights = _layers()[2]
        size = len(value)
        tail = layer == 0
        chosen = heights[layer] + self.uniforms(size) * (heights[np.minimum(layer + 1, _LAYERS)] - heights[layer])
        under = chosen < np.exp(-0.5 * value * value)
        result = np.where(under, value, np.nan)
        beyond = np.flatnonzero(tail)
        if len(beyond):
            result[beyond] = np.copysign(self._tail(len(beyond)), value[beyond])
        again = np.flatnonzero(~under & ~tail)
        if len(again):
            redrawn = np.empty(len(again))
            self._fill_normals(redrawn)
            result[again] = redrawn
        return result

    def _tail(self, count: int) -> Float64Array:
        """Normals given that they exceed the edge."""
        normals = np.empty(0)
        while len(normals) < count:
            extra = self.exponentials(count) / _EDGE
            accepted = 2 * self.exponentials(count) > extra * extra
            normals = np.concatenate((normals, _EDGE + extra[accepted]))
        return normals[:count]


def _behind_the_point(words: UInt64Array) -> Float64Array:
    """Words as fractions of 2^64, in the middle of their 2^-64, so none is 0."""
    return (words.astype(np.float64) + 0.5) * 2.0**-64


@functools.cache
def _layers() -> tuple[Float64Array, Int64Array, Float64Array]:
    """(widths [256] of a step of a place, places [256] surely under the curve, heights [257] of the layers' floors)."""
    edges = np.empty(_LAYERS + 1)
    edges[0] = _AREA / math.exp(-0.5 * _EDGE * _EDGE)  # as wide as if the tail were part of the box
    edges[1] = _EDGE
    for layer in range(2, _LAYERS):
        height = _AREA / edges[layer - 1] + math.exp(-0.5 * edges[layer - 1] ** 2)
        edges[layer] = math.sqrt(-2 * math.log(height))
    edges[_LAYERS] = 0.0
    heights = np.exp(-0.5 * edges * edges)
    heights[0] = 0.0
    unit = 2.0 ** (_BITS - 1)
    # A thousandth of a millionth less: rounding decides nothing.
    inner = np.floor(edges[1:] / edges[:-1] * unit * (1 - 2.0**-40)).astype(np.int64)
    return edges[:-1] / unit, inner, heights
