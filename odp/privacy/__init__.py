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
from odp.privacy.events import GaussianRelease
from odp.privacy.ledger import Budget, Entry, Ledger, ReleaseState
from odp.privacy.report import privacy_report, render_text

__all__ = [
    "Budget",
    "Entry",
    "GaussianRelease",
    "Ledger",
    "ReleaseState",
    "check_delta",
    "default_delta",
    "epsilon",
    "epsilon_pld",
    "epsilon_rdp",
    "mu",
    "mu_for",
    "noise_multiplier_for",
    "privacy_report",
    "render_text",
]
