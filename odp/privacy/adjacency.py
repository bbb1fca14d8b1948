"""What a guarantee compares: the adjacencies, stated once. Every event, charge and report names the one that it is for.

===================  ==================================================================================================
name                 two neighbouring populations
===================  ==================================================================================================
``zero_out_user``    have the same devices with the same transcripts of uploads. All data of one user are replaced by
                     none: in the second one, each of its contributions is the empty one, which adds zero to every sum
``add_remove_user``  have the same data, but one user is absent from the second one, uploads included
``any_two_inputs``   are one person with any data, and the same person with any other data or none
===================  ==================================================================================================

A contribution of bound Delta moves a sum by at most Delta under either of the first two, since the empty contribution
adds zero. They differ in everything that depends on *how many* contribute:

- the number of contributions, which every release states exactly;
- the minimum cohort, and the cap on contributions, which decide whether and of whom there is a release;
- the noise of SecAgg+, of which each contributor adds a share.

All of these are equal for neighbours by ``zero_out_user``. For neighbours by ``add_remove_user`` they are not, so that
a release which states its count is not private in that sense at all. Enclaves therefore charge ``zero_out_user`` and
nothing else (``trusted_aggregator.state.population``). ``add_remove_user`` may be claimed by whoever releases sums with
Gaussian noise and none of the three. Local randomizers claim ``any_two_inputs``, which implies ``zero_out_user``.

=====================================  ===================  =====================  ====================================
mechanism                              ``zero_out_user``    ``add_remove_user``    why
=====================================  ===================  =====================  ====================================
Gaussian, full participation           yes                  yes                    one shift of at most Delta in both
Gaussian over a secret Poisson draw    yes                  yes                    ``composition.py``, proof
discrete Gaussian in shares            yes                  no                     without the user, a share is missing
randomized response                    implied              -                      ``any_two_inputs`` is stronger
shuffled local reports                 yes                  no                     without the user, a report is missing
=====================================  ===================  =====================  ====================================

A list of events is a claim under the weakest adjacency in it (``of_list``): mechanisms that hold under
``add_remove_user`` hold under ``zero_out_user`` with the same numbers, by the table.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from odp.errors import PrivacyError


class Adjacency(enum.StrEnum):
    """The relation between two neighbouring populations; see the module."""

    ZERO_OUT_USER = "zero_out_user"
    ADD_REMOVE_USER = "add_remove_user"
    ANY_TWO_INPUTS = "any_two_inputs"

    @property
    def in_words(self) -> str:
        """One line for people."""
        return _IN_WORDS[self]

    @classmethod
    def named(cls, name: object) -> Adjacency:
        """The adjacency of that name. Raises PrivacyError where there is none."""
        try:
            return cls(str(name))
        except ValueError:
            raise PrivacyError(f"adjacency={name!r} cannot be charged; known adjacencies: {', '.join(cls)}") from None


_IN_WORDS = {
    Adjacency.ZERO_OUT_USER: (
        "all data of one user replaced by the empty contribution, with the same devices and the same uploads"
    ),
    Adjacency.ADD_REMOVE_USER: "all contributions of one user present or absent",
    Adjacency.ANY_TWO_INPUTS: "one person's data replaced by any other, or by none",
}


def require_adjacency(name: object, holds: Sequence[Adjacency], mechanism: str) -> Adjacency:
    """The adjacency of that name. Raises PrivacyError if the bound of ``mechanism``, for ``holds``, is not for it."""
    if (adjacency := Adjacency.named(name)) not in holds:
        raise PrivacyError(
            f"adjacency={adjacency.value!r} cannot be charged for mechanism={mechanism!r}, which holds for "
            f"{', '.join(holds)}"
        )
    return adjacency


def of_list(adjacencies: Iterable[Adjacency]) -> Adjacency:
    """The joint claim of a list of events, each under its own adjacency; ``zero_out_user`` for an empty list."""
    distinct = set(adjacencies)
    return distinct.pop() if len(distinct) == 1 else Adjacency.ZERO_OUT_USER
