"""The device's normal law against high precision, and against SciPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpmath.ctx_mp import MPContext
from scipy import special

from odp.privacy.accounting import erfcx, ndtr


def test_the_scaled_tail_is_exact_to_fourteen_digits_everywhere():
    precise = MPContext()
    precise.dps = 40
    points = np.concatenate([np.linspace(-26.0, 30.0, 300), [7.999999, 8.0, 8.000001], np.geomspace(30.0, 1e6, 20)])
    for x in points.tolist():
        exact = precise.exp(precise.mpf(x) ** 2) * precise.erfc(precise.mpf(x))
        assert abs(precise.mpf(erfcx(x)) / exact - 1) < 1e-14, x


def test_what_a_double_cannot_hold_is_infinite_and_not_an_error():
    assert erfcx(-27.0) == math.inf


def test_the_distribution_function_is_scipys():
    for x in np.linspace(-37.0, 9.0, 500).tolist():
        assert ndtr(x) == pytest.approx(float(special.ndtr(x)), rel=1e-12)
