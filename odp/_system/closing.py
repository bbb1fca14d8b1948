"""Objects that hold something until they are closed, as context managers."""

from __future__ import annotations

import abc
from typing import Self


class Closing(abc.ABC):
    """A context manager that closes itself at its end."""

    @abc.abstractmethod
    def close(self) -> None:
        """Gives back what the object holds. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
