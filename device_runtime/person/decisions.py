"""A person's decisions about their device (limits, pause and opt-outs) as one value that the store keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from device_runtime.person.ledger import TaskTerms
from device_runtime.person.limits import Limits, limits_from_json
from odp import _validate
from odp.errors import ConfigurationError, NotNow, PrivacyError

_MOST_OPT_OUTS = 1000


@dataclass(frozen=True, kw_only=True)
class Person:
    """The person's decisions. Times are seconds since the epoch.

    Attributes:
      limits: their own, or None where they left the host's.
      paused: since when the device rests.
      opted_out: since when it takes part in nothing.
      opt_outs: tasks that it takes no part in, by name or by the 64 hexadecimal digits of their id, and since when.
    """

    limits: Limits | None = None
    paused: float | None = None
    opted_out: float | None = None
    opt_outs: Mapping[str, float] = field(default_factory=dict)

    def check_in(self, population: str) -> None:
        """Returns if the device may ask for work of ``population``.

        Raises:
          NotNow: it is paused, opted out of everything, or its limits leave that population out.
        """
        if self.opted_out is not None:
            raise NotNow("opted out of everything; `odp device opt-out --all --undo` reverses that", "opted out")
        if self.paused is not None:
            raise NotNow("paused; `odp device resume` ends that", "paused")
        if self.limits is not None and self.limits.populations and population not in self.limits.populations:
            allowed = ", ".join(self.limits.populations)
            raise NotNow(f"population={population!r} is not among the allowed {allowed}", "population")

    def check(self, terms: TaskTerms) -> None:
        """Returns if the device may take part in a task now.

        Raises:
          NotNow: as ``check_in``.
          PrivacyError: the person opted out of this task.
        """
        self.check_in(terms.population)
        if self.opted_out_of(terms):
            raise PrivacyError(
                f"task {terms.name!r} declined: opted out; `odp device opt-out {terms.name} --undo` reverses that"
            )

    def opted_out_of(self, terms: TaskTerms) -> bool:
        """Whether the person opted out of the task, by its name or its id, or out of everything."""
        return self.opted_out is not None or terms.name in self.opt_outs or terms.task_sha256.hex() in self.opt_outs

    def with_opt_out(self, task: str | None, time: float) -> Person:
        """Adds an opt-out of ``task``; of everything if it is None."""
        if task is None:
            return replace(self, opted_out=self.opted_out if self.opted_out is not None else time)
        _validate.identifier(task=task)
        if len(self.opt_outs) >= _MOST_OPT_OUTS:
            raise ConfigurationError(f"Expected at most {_MOST_OPT_OUTS} opt-outs; --all opts out of every task")
        return replace(self, opt_outs={**self.opt_outs, task: self.opt_outs.get(task, time)})

    def without_opt_out(self, task: str | None) -> Person:
        """Removes the opt-out of ``task``, or of everything. Raises ConfigurationError if there is none."""
        if task is None:
            if self.opted_out is None:
                raise ConfigurationError("Expected an opt-out of everything to reverse: there is none")
            return replace(self, opted_out=None)
        if task not in self.opt_outs:
            raise ConfigurationError(
                f"Expected task={task!r} to be among the opt-outs{_validate.nearest(task, self.opt_outs)}"
            )
        return replace(self, opt_outs={name: time for name, time in self.opt_outs.items() if name != task})

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Person:
        """The value that ``to_json`` wrote. Raises ValueError, TypeError or KeyError where it is damaged."""
        values = json.loads(text)
        limits = values["limits"]
        return cls(**{**values, "limits": None if limits is None else limits_from_json(limits)})
