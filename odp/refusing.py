"""The boundary around what strangers wrote: whatever goes wrong while it is opened is a refusal of that thing.

Definitions, models, charters, logs and answers of servers are checked field by field, and a check that fails raises an
``OdpError`` that names the field. An error that no check foresaw must not end the program that opens them: on a device
host, one task would end all devices.

    >>> with refusing("task definition"):
    ...     1 / 0
    Traceback (most recent call last):
    odp.refusing.UnforeseenRefusal: the task definition was refused: it raises ZeroDivisionError in <module>:2; ...
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from google.protobuf.message import DecodeError

from odp.errors import ConfigurationError, OdpError

_MOST_PLACES = 6


class UnforeseenRefusal(ConfigurationError):
    """Something was refused for an error that no check foresaw: a check is missing in this program.

    The message has the kind of the error and its place in the code, never its text, which could hold data.
    """


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turns every error but those of ODP into the refusal of ``what``, which the block opens; also a decorator.

    Raises:
      ConfigurationError: the block parsed a protobuf message, and the bytes are none.
      UnforeseenRefusal: it raised another ``Exception`` that is no ``OdpError``.
    """
    try:
        yield
    except OdpError:
        raise
    except DecodeError as error:
        raise ConfigurationError(f"the {what} is not a valid message") from error
    except Exception as error:
        raise UnforeseenRefusal(
            f"the {what} was refused: it raises {type(error).__name__} in {places(error, most=2)}; update this program,"
            " or report this line to its makers"
        ) from error


def places(error: BaseException, *, most: int = _MOST_PLACES) -> str:
    """The innermost functions that ``error`` passed, as ``function:line < function:line``."""
    # Not extract_tb: that reads the source files, and an enclave has none.
    passed = [f"{frame.f_code.co_name}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)]
    return " < ".join(reversed(passed[-most:])) or "unknown"
