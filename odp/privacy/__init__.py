"""Differential privacy of released sums: exact integer noise, exact accounting, a ledger, and a report."""

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
