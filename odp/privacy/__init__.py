"""Differential privacy of released sums: exact integer noise, exact accounting, a ledger, and a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odp.lazy_names import lazy_names

if TYPE_CHECKING:
    from odp.privacy.accounting import (
        check_delta,
        default_delta,
        epsilon,
        epsilon_pld,
        epsilon_rdp,
        mu,
        mu_for,
        noise_multiplier_for,
    )
    from odp.privacy.adjacency import Adjacency
    from odp.privacy.composition import truncation_cap
    from odp.privacy.events import (
        DistributedRelease,
        Event,
        GaussianRelease,
        LocalReport,
        SampledRound,
        Sampling,
        ShuffledReports,
    )
    from odp.privacy.ledger import Ledger
    from odp.privacy.ledger_entry import Budget, Entry, ReleaseState
    from odp.privacy.reconstruction import (
        ReconstructionCertificate,
        dictionary_breach,
        lifetime_epsilon,
        projection_breach,
    )
    from odp.privacy.rendering import render_html, render_text
    from odp.privacy.report import privacy_report, report_of_ledger
    from odp.privacy.shuffling import amplified_epsilon, amplified_epsilon_binary, amplified_epsilon_k_rr

__all__ = [
    "Adjacency",
    "Budget",
    "DistributedRelease",
    "Entry",
    "Event",
    "GaussianRelease",
    "Ledger",
    "LocalReport",
    "ReconstructionCertificate",
    "ReleaseState",
    "SampledRound",
    "Sampling",
    "ShuffledReports",
    "amplified_epsilon",
    "amplified_epsilon_binary",
    "amplified_epsilon_k_rr",
    "check_delta",
    "default_delta",
    "dictionary_breach",
    "epsilon",
    "epsilon_pld",
    "epsilon_rdp",
    "lifetime_epsilon",
    "mu",
    "mu_for",
    "noise_multiplier_for",
    "privacy_report",
    "projection_breach",
    "render_html",
    "render_text",
    "report_of_ledger",
    "truncation_cap",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Adjacency": "odp.privacy.adjacency",
        "Budget": "odp.privacy.ledger_entry",
        "DistributedRelease": "odp.privacy.events",
        "Entry": "odp.privacy.ledger_entry",
        "Event": "odp.privacy.events",
        "GaussianRelease": "odp.privacy.events",
        "Ledger": "odp.privacy.ledger",
        "LocalReport": "odp.privacy.events",
        "ReconstructionCertificate": "odp.privacy.reconstruction",
        "ReleaseState": "odp.privacy.ledger_entry",
        "SampledRound": "odp.privacy.events",
        "Sampling": "odp.privacy.events",
        "ShuffledReports": "odp.privacy.events",
        "amplified_epsilon": "odp.privacy.shuffling",
        "amplified_epsilon_binary": "odp.privacy.shuffling",
        "amplified_epsilon_k_rr": "odp.privacy.shuffling",
        "check_delta": "odp.privacy.accounting",
        "default_delta": "odp.privacy.accounting",
        "dictionary_breach": "odp.privacy.reconstruction",
        "epsilon": "odp.privacy.accounting",
        "epsilon_pld": "odp.privacy.accounting",
        "epsilon_rdp": "odp.privacy.accounting",
        "lifetime_epsilon": "odp.privacy.reconstruction",
        "mu": "odp.privacy.accounting",
        "mu_for": "odp.privacy.accounting",
        "noise_multiplier_for": "odp.privacy.accounting",
        "privacy_report": "odp.privacy.report",
        "projection_breach": "odp.privacy.reconstruction",
        "render_html": "odp.privacy.rendering",
        "render_text": "odp.privacy.rendering",
        "report_of_ledger": "odp.privacy.report",
        "truncation_cap": "odp.privacy.composition",
    },
)
