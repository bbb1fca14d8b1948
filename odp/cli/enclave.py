"""`odp enclave`: what devices pin."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from odp.cli.console import print_text

if TYPE_CHECKING:
    from odp.enclave.policy import Accumulation, EnclavePolicy

app = typer.Typer(help="Reference values: which enclaves a device accepts.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps the group's one command a subcommand."""


@app.command("reference-values")
def reference_values(
    platform: Annotated[
        Path, typer.Option(help="Folder of the emulated hardware: its root certificate is pinned.")
    ] = Path("odp-state/platform"),
    minimum_cohort: Annotated[int, typer.Option(help="As given to `odp aggregator run`.")] = 100,
    population_epsilon: Annotated[float, typer.Option(help="As given to `odp aggregator run`.")] = 20.0,
    population_delta: Annotated[float, typer.Option(help="As given to `odp aggregator run`.")] = 1e-5,
    accumulation: Annotated[str, typer.Option(help="As given to `odp aggregator run`.")] = "oblivious",
    output: Annotated[Path, typer.Option(help="Where to write the JSON file.")] = Path("reference_values.json"),
) -> None:
    """Write the reference values of the enclaves that this installation runs: root, image digests, policies.

    Digests and policies are computed from the installed code and the options, not asked from a running service.
    """
    from odp.enclave.policy import EnclavePolicy

    policy = EnclavePolicy(
        role="aggregator",
        minimum_cohort=minimum_cohort,
        population_epsilon=population_epsilon,
        population_delta=population_delta,
        accumulation=cast("Accumulation", accumulation),
    )
    write_reference_values(platform, policy, output)
    print_text(str(output))


def write_reference_values(platform: Path, aggregator_policy: EnclavePolicy, output: Path) -> None:
    """Reference values for enclaves of this code on ``platform``, written atomically to ``output``."""
    from odp.enclave.measurement import AGGREGATOR_PACKAGES, DISTRIBUTOR_PACKAGES, image_digest
    from odp.enclave.platform import EmulatedPlatform
    from odp.enclave.policy import EnclavePolicy
    from odp.enclave.reference_values import ReferenceValues

    policies = {"aggregator": aggregator_policy, "distributor": EnclavePolicy(role="distributor")}
    ReferenceValues(
        roots=(EmulatedPlatform.open(platform).root_certificate_pem,),
        image_digests={
            "aggregator": (image_digest(AGGREGATOR_PACKAGES),),
            "distributor": (image_digest(DISTRIBUTOR_PACKAGES),),
        },
        policy_sha256={role: (hashlib.sha256(policy.to_bytes()).hexdigest(),) for role, policy in policies.items()},
        allow_emulated=True,
    ).save(output)
