"""The boundary around what strangers wrote: whatever goes wrong while it is opened is a refusal of that thing.

Definitions, models, charters, logs and answers of servers are checked field by field, and a check that fails raises an
``OdpError`` that names the field. An error that no check foresaw must not end the program that opens them: on a device
host, one task would end all devices.

    >>> with refusing("task definition"):
    ...     1 / 0
    Traceback (most recent call last):
    odp.refusing.UnforeseenRefusal: the task definition was refused: it raises ZeroDivisionError in <module>:2; ...

A machine that has no memory, thread or open file left says nothing about what it was to open: that is no refusal.
"""

from __future__ import annotations

import contextlib
import errno
import traceback
from collections.abc import Iterator

from google.protobuf.message import DecodeError

from odp.errors import ConfigurationError, OdpError, OutOfResources

_MOST_PLACES = 6
# Of an OSError. Others are about the input: an address that is none, or a time that no calendar has.
_SHORTAGES = frozenset((errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT, errno.EIO))
# CPython's whole text of a RuntimeError.
_NO_THREAD = "can't start new thread"


class UnforeseenRefusal(ConfigurationError):
    """Something was refused for an error that no check foresaw: a check is missing in this program.

    The message has the kind of the error and its place in the code, never its text, which could hold data.
    """


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turns every error but those of ODP into the refusal of ``what``, which the block opens; also a decorator.

    Raises:
      OutOfResources: this machine lacked memory, threads, open files or disk space.
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
        require_resources(error, f"open the {what}")
        raise UnforeseenRefusal(
            f"the {what} was refused: it raises {type(error).__name__} in {places(error, most=2)}; update this program,"
            " or report this line to its makers"
        ) from error


def require_resources(error: Exception, what: str) -> None:
    """Returns unless ``error`` comes of a machine that was short of something when it was to do ``what``.

    Raises OutOfResources where it does.
    """
    short = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SHORTAGES)
    if short or (isinstance(error, RuntimeError) and str(error) == _NO_THREAD):
        why = error.strerror if isinstance(error, OSError) else "no memory" if isinstance(error, MemoryError) else error
        raise OutOfResources(
            f"this machine could not {what}: {why}; free memory, open files, processes or disk space, then retry"
        ) from error


def places(error: BaseException, *, most: int = _MOST_PLACES) -> str:
    """The innermost functions that ``error`` passed, as ``function:line < function:line``."""
    # Not extract_tb: that reads the source files, and an enclave has none.
    passed = [f"{frame.f_code.co_name}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)]
    return " < ".join(reversed(passed[-most:])) or "unknown"
