"""What an examination of a deployment finds: one line per check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "failure", "not examined"]


@dataclass(frozen=True)
class Finding:
    """One check of one program, endpoint or folder.

    Attributes:
        subject: which one, for people.
        check: what was looked at.
        state: what came out.
        told: what was seen.
        todo: what to do about it; empty where all is well.
    """

    subject: str
    check: str
    state: State
    told: str
    todo: str = ""
