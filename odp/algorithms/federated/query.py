"""The declared query of a round of federated training.

=============  =========  =============================================  ==============================  =============
release        shape      sum over users of                              sensitivity                     noise std
=============  =========  =============================================  ==============================  =============
``update``     [size]     difference of the parameters / clip norm       1                               noise_std
``update``     [size+1]   the same, and with an adaptive clip norm       sqrt(1 + weight² / 4)           noise_std
                          weight / 2 or its negative
``update``     [size+1]   the difference, and with diagnostics           sqrt(1 + weight²)               noise_std
                          weight * its squared norm / clip norm²
=============  =========  =============================================  ==============================  =============

With both numbers, [size+2], the sensitivity is the root of 1, the former's weight² / 4 and the latter's weight².

A user's contribution keeps this bound in L2, in integers on the grid, whatever its device trained on; the empty
contribution is zero. So a sum moves by at most the sensitivity, exactly, and the clip norm is no number of the query.
Difference and further numbers are one vector with one bound: their joint sensitivity is charged (rule P8).

With ``upload_bits``, contributions are rotated and rounded to few bits, and so is the release. The sensitivity is then
that of ``odp.algorithms.dense.rotated``, above the bound by what rounding adds, and the noise grows with it.

Source: McMahan et al. 2018, "Learning differentially private recurrent language models", algorithm 1, with fixed
denominators.
"""

from __future__ import annotations

from odp.algorithms.dense.uploads import Upload
from odp.algorithms.federated.terms import RELEASE
from odp.algorithms.seam import SampledQuery


def update_query(upload: Upload) -> SampledQuery:
    """The query of a round whose contributions travel as ``upload``."""
    return upload.query(RELEASE)
