"""A part of a task's budget for one question, asked first: how many devices have rows that the training can use.

Without it nobody learns whether a training had anything to train on: its noise hides that, too. The question is a task
of its own, of the same population and in the same ledger. The two parts of the budget add up to the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from odp import _validate
from odp.errors import ConfigurationError

#: A larger share would leave the training too little.
_LARGEST_SHARE = 0.5
#: Of the name of a task, in the name of its count.
_SUFFIX = "usable"


@_validate.strict_keywords
@dataclass(frozen=True, kw_only=True)
class CountUsable:
    """A count of the devices with usable rows, before a training.

    Every device votes for one of four: no rows, none usable, some, or all. The training opens no round before the
    count is released.

    Attributes:
      share: of epsilon and of delta, above 0 and at most .5. The training gets the rest.
      least: of devices with a usable row, from 0 to 1. Where the count's interval (95 %) lies below it, the server ends
        the training before its first round. With 0, it trains whatever the count says.

    Raises:
      ConfigurationError: a number is out of range.
    """

    share: float = 0.05
    least: float = 0.1

    def __post_init__(self) -> None:
        _validate.finite(share=self.share)
        if not 0.0 < self.share <= _LARGEST_SHARE:
            raise ConfigurationError(f"Expected share={self.share!r} to be above 0, and at most {_LARGEST_SHARE}")
        _validate.within(low=0.0, high=1.0, least=self.least)

    def name_for(self, task: str) -> str:
        """The name of the question of a task of this name. Raises ConfigurationError where it would be too long."""
        most = _validate.LONGEST_NAME - len(_SUFFIX) - 1
        if len(task) > most:
            raise ConfigurationError(
                f"Expected name={task!r} to be at most {most} characters with count_usable, whose task is named "
                f"NAME.{_SUFFIX}"
            )
        return f"{task}.{_SUFFIX}"
