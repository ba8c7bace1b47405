"""Commands of this house; the command line of the library finds them by name."""

from __future__ import annotations

from collections.abc import Mapping

from counterfactual_training.errors import CounterfactualTrainingError, need_extra


def need_figures() -> None:
    """Stop before hours of training if the package for figures is missing."""
    need_extra("matplotlib", "lab")


def complain(
    failures: Mapping[str, str], consequence: str = "These tables are incomplete"
) -> None:
    """Raise an error if something failed; ``failures`` maps names to reasons."""
    # The first one, if any failed.
    for name, reason in failures.items():
        raise CounterfactualTrainingError(
            f"{consequence}: {len(failures)} failed, the first being {name}: "
            f"{reason.rstrip('.')}. The same command "
            "tries again what failed."
        )
