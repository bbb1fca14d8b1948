"""The numbers of the randomizers in a definition, as every party checks them.

Apart from ``report.py``, which needs the libraries of the randomizers: enclaves check definitions alone.
"""

from __future__ import annotations

from odp import _validate
from odp.errors import ConfigurationError
from odp.v1 import private_fl_pb2

_LARGEST_NORM = 1e9


def check_numbers(message: private_fl_pb2.PrivateReportTerms) -> None:
    """Returns if the numbers of a definition are in range; what they cost follows from ``Reports``.

    Raises:
      ConfigurationError: one is missing or out of range.
    """
    if not 0.0 <= message.cap_height < 1.0:
        raise ConfigurationError(f"Expected cap_height={message.cap_height!r} to be at least 0 and below 1")
    _validate.within(low=0.5, high=1.0, cap_probability=message.cap_probability)
    _validate.within(low=1.0 / _LARGEST_NORM, high=_LARGEST_NORM, largest_norm=message.largest_norm)
    _validate.integer(low=1, high=2**16, levels=message.levels)
    _validate.positive(magnitude_epsilon=message.magnitude_epsilon)
    _validate.integer(low=1, high=2**20, most_participations=message.most_participations)
