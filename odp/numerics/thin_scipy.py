"""The parts of SciPy that an enclave calls, under SciPy's names, in place of the library.

dp_accounting and our own sums call twenty of SciPy's functions, and importing them the usual way loads 530 modules.
``install`` offers those functions alone, on SciPy's own compiled extensions, to a process that has not loaded SciPy:

=================  ============================================  ===========================================
name               what it has                                   on the extension
=================  ============================================  ===========================================
``scipy.special``  its universal functions, and ``logsumexp``    ``special._ufuncs``; numpy
``scipy.stats``    ``norm`` and ``binom``                        ``special._ufuncs``
``scipy.fft``      ``fft``, ``ifft``, ``next_fast_len``          ``fft._pocketfft.pypocketfft``
``scipy.signal``   ``fftconvolve``                               ``fft._pocketfft.pypocketfft``
``scipy.sparse``   ``csr_array``, for products with dense rows   ``sparse._sparsetools``
=================  ============================================  ===========================================

``scipy.optimize`` has nothing: dp_accounting imports it for calibrations, which no enclave makes. Every other name and
module of SciPy is refused by an ImportError or an AttributeError.

Guarantee: each function gives the bits that SciPy's gives, for the arguments that dp_accounting and our code pass
(``tests/numerics/test_thin_scipy.py`` compares them, and epsilons, with the whole library's). Other arguments raise
TypeError or ValueError. Only the aggregator's enclave installs this (``warm_up`` of its entry module). A person's
process has SciPy, and the distributor's enclave has neither.

Source: SciPy 1.15 to 1.17, whose extensions have these names and signatures.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from odp.errors import ConfigurationError, StateError
from odp.numerics.arrays import Float64Array, Int64Array

_LIBRARY = "scipy"
#: Folders whose compiled extensions are loaded; the extensions import each other by these names.
_FOLDERS = ("", "_lib", "special", "fft", "fft._pocketfft", "sparse")
_WITHOUT_EXTENSION = ("optimize", "signal", "stats")

_UNSCALED, _BY_LENGTH = 0, 2  # pocketfft: a transform as it is, or divided by its length
_THREADS = 1


def install() -> None:
    """Makes ``import scipy`` give the parts above, from now on and in this process.

    Raises:
        StateError: this process has loaded SciPy, or a part of it, already.
        ConfigurationError: SciPy is not installed, or its extensions are not those that this module calls.
    """
    if loaded := sorted(name for name in sys.modules if name.partition(".")[0] == _LIBRARY):
        raise StateError(f"{loaded[0]} is loaded already: install the thin SciPy before anything imports SciPy")
    spec = importlib.util.find_spec(_LIBRARY)
    locations = spec.submodule_search_locations if spec is not None else None
    try:
        # An image has the extensions by name, and no folder of the library.
        _fill(Path(locations[0] if locations else _LIBRARY))
    except BaseException as error:
        for name in [name for name in sys.modules if name.partition(".")[0] == _LIBRARY]:
            del sys.modules[name]
        if isinstance(error, ImportError | AttributeError):
            raise ConfigurationError(
                f"The installed SciPy has other extensions than an enclave calls: {error}; install scipy>=1.15,<1.18"
            ) from error
        raise


class _ThinModule(ModuleType):
    """A package of SciPy that has only what ``_fill`` puts there."""

    def __init__(self, name: str, path: list[str]) -> None:
        super().__init__(name)
        self.__path__ = path

    def __getattr__(self, name: str) -> Any:  # never returns
        # Python itself looks for names such as __file__, and has a default for each.
        raise AttributeError(f"{self.__name__}.{name} is no part of SciPy that an enclave loads ({__name__})")


def _fill(folder: Path) -> None:
    packages: dict[str, _ThinModule] = {}
    for name in (*_FOLDERS, *_WITHOUT_EXTENSION):
        package = _ThinModule(f"{_LIBRARY}.{name}" if name else _LIBRARY, [str(folder.joinpath(*name.split(".")))])
        packages[name] = sys.modules[package.__name__] = package
        holder, _, last = name.rpartition(".")
        if last:
            setattr(packages[holder], last, package)
    ufuncs = importlib.import_module("scipy.special._ufuncs")
    pocketfft = importlib.import_module("scipy.fft._pocketfft.pypocketfft")
    sparsetools = importlib.import_module("scipy.sparse._sparsetools")
    # No other module of SciPy is looked for from here on.
    for package in packages.values():
        package.__path__ = []
    special = {name: value for name, value in vars(ufuncs).items() if isinstance(value, np.ufunc)}
    parts: dict[str, dict[str, object]] = {
        "special": {**special, "logsumexp": logsumexp},
        "stats": {"norm": _Norm(ufuncs.ndtr, ufuncs.log_ndtr, ufuncs.ndtri), "binom": _Binom(ufuncs._binom_sf)},
        "fft": _transforms(pocketfft),
        "signal": {"fftconvolve": _convolution(pocketfft)},
        "sparse": {"csr_array": _rows_of_weights(sparsetools)},
    }
    for name, values in parts.items():
        for key, value in values.items():
            setattr(packages[name], key, value)


def logsumexp(a: ArrayLike, axis: int | None = None, b: ArrayLike | None = None) -> Float64Array:
    """Logarithm of the sum of ``b`` times the exponentials of ``a``, float64; along ``axis``, or of everything.

    The largest terms are taken out of the sum: with m their weights and r the rest over m, it is
    ``log1p(r) + log(m) + max(a)``. What is not finite is the plain formula's. NaN where the sum is negative.

    Raises:
        ValueError: ``a`` is empty.
    """
    exponents, weights = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(1.0 if b is None else b, np.float64))
    exponents, weights = np.atleast_1d(exponents), np.atleast_1d(weights)
    if not exponents.size:
        raise ValueError("Expected at least one exponent for logsumexp")
    along: dict[str, Any] = {"axis": tuple(range(exponents.ndim)) if axis is None else axis, "keepdims": True}
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        plain = np.log(np.sum(weights * np.exp(exponents), **along))
    with np.errstate(divide="ignore", invalid="ignore"):
        # Without a weight, even an infinite exponent adds nothing.
        exponents = np.where(weights == 0.0, -np.inf, exponents)
        largest = np.max(exponents, **along)
        is_largest = exponents == largest
        mass = np.sum(weights * is_largest, **along)
        rest = np.sum(weights * np.exp(np.where(is_largest, -np.inf, exponents) - largest), **along)
        rest = np.where(rest == 0.0, rest, rest / mass)
        negative = np.sign(rest + 1.0) * np.sign(mass) < 0.0
        result = np.log1p(np.where(rest < -1.0, -rest - 2.0, rest)) + np.log(np.abs(mass)) + largest
    result = np.where(negative, np.nan, result)
    result = np.squeeze(np.where(np.isfinite(result), result, plain), axis=along["axis"])
    return result[()]


class _Norm:
    """The normal law: called with its standard deviation, as dp_accounting does, it is that of mean 0."""

    def __init__(self, cdf: np.ufunc, log_cdf: np.ufunc, quantile: np.ufunc, scale: float = 1.0) -> None:
        if not scale > 0.0:
            raise ValueError(f"Expected scale={scale!r} of a normal law to be > 0")
        self._cdf, self._log_cdf, self._quantile, self._scale = cdf, log_cdf, quantile, scale

    def __call__(self, *, scale: float) -> _Norm:
        return _Norm(self._cdf, self._log_cdf, self._quantile, scale)

    def cdf(self, x: ArrayLike) -> Float64Array:
        return self._cdf(np.asarray(x, np.float64) / self._scale)  # type: ignore[no-any-return]

    def logcdf(self, x: ArrayLike) -> Float64Array:
        x = np.asarray(x, np.float64) / self._scale
        # SciPy's zero at infinity is positive, and its function's is negative.
        return np.where(np.isposinf(x), 0.0, self._log_cdf(x))[()]

    def ppf(self, q: ArrayLike) -> Float64Array:
        return self._quantile(np.asarray(q, np.float64)) * self._scale + 0.0  # type: ignore[no-any-return]


class _Binom:
    """The binomial law, of single numbers."""

    def __init__(self, upper_tail: np.ufunc) -> None:
        self._upper_tail = upper_tail

    def sf(self, k: float, n: int, p: float) -> float:
        """P[X > k] of n trials with probability p each. NaN where they are none."""
        if not (n >= 0 and n == int(n) and 0.0 <= p <= 1.0) or np.isnan(k):
            return float("nan")
        if not 0 <= k < n:
            return 1.0 if k < 0 else 0.0
        return float(np.clip(self._upper_tail(np.floor(k), n, p), 0.0, 1.0))


def _transforms(pocketfft: Any) -> dict[str, object]:  # an extension without types
    def fft(x: ArrayLike, n: int) -> Any:  # complex128
        return pocketfft.c2c(_padded(x, n), (0,), True, _UNSCALED, None, _THREADS)

    def ifft(x: ArrayLike) -> Any:  # complex128
        return pocketfft.c2c(_line(x), (0,), False, _BY_LENGTH, None, _THREADS)

    def next_fast_len(target: int) -> int:
        return int(pocketfft.good_size(target, False))

    return {"fft": fft, "ifft": ifft, "next_fast_len": next_fast_len}


def _convolution(pocketfft: Any) -> Callable[[ArrayLike, ArrayLike], Float64Array]:
    def fftconvolve(in1: ArrayLike, in2: ArrayLike) -> Float64Array:
        first: Float64Array = _line(in1).astype(np.float64)
        second: Float64Array = _line(in2).astype(np.float64)
        if 1 in (len(first), len(second)):
            return first * second
        size = len(first) + len(second) - 1
        length = pocketfft.good_size(size, True)
        first_spectrum, second_spectrum = (
            pocketfft.r2c(_padded(x, length), (0,), True, _UNSCALED, None, _THREADS) for x in (first, second)
        )
        whole: Float64Array = pocketfft.c2r(
            first_spectrum * second_spectrum, (0,), length, False, _BY_LENGTH, None, _THREADS
        )
        return whole[:size]

    return fftconvolve


def _line(values: ArrayLike) -> Any:  # float64 or complex128
    line = np.asarray(values)
    if line.ndim != 1 or not line.size:
        raise ValueError(f"Expected one axis with at least one value (got shape {line.shape})")
    return line.astype(np.complex128 if np.iscomplexobj(line) else np.float64, copy=False)


def _padded(values: ArrayLike, length: int) -> Any:  # as _line
    line = _line(values)
    padded = np.zeros(length, line.dtype)
    padded[: len(line)] = line[:length]
    return padded


def _rows_of_weights(sparsetools: Any) -> type:  # an extension without types
    class csr_array:  # SciPy's name
        """float64 weights at (row, column) pairs; pairs that occur twice add up."""

        def __init__(
            self, entries: tuple[Float64Array, tuple[Int64Array, Int64Array]], *, shape: Sequence[int]
        ) -> None:
            weights, (rows, columns) = entries
            # In SciPy's order, so that products round alike.
            order = np.lexsort((columns, rows))
            self._weights = np.asarray(weights, np.float64)[order]
            self._columns = np.asarray(columns, np.int64)[order]
            self._shape = (int(shape[0]), int(shape[1]))
            counts = np.bincount(rows, minlength=self._shape[0])
            if len(counts) > self._shape[0] or (self._columns.size and not self._within(self._columns)):
                raise ValueError(f"Expected rows and columns within shape={self._shape}")
            self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

        def _within(self, columns: Int64Array) -> bool:
            return bool(columns.min() >= 0 and columns.max() < self._shape[1])

        def __matmul__(self, dense: Float64Array) -> Float64Array:
            if dense.ndim != 2 or len(dense) != self._shape[1]:
                raise ValueError(f"Expected {self._shape[1]} dense rows (got shape {dense.shape})")
            product = np.zeros((self._shape[0], dense.shape[1]))
            flat = np.ascontiguousarray(dense, np.float64).ravel()
            sparsetools.csr_matvecs(
                *self._shape, dense.shape[1], self._starts, self._columns, self._weights, flat, product.ravel()
            )
            return product

    return csr_array
