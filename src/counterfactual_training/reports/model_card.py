"""The model card as a file."""

from __future__ import annotations

from pathlib import Path

from counterfactual_training.experiments.card import Card
from counterfactual_training.persistence import atomic_write


def write_card(card: Card, path: str | Path) -> None:
    """Write a card as Markdown."""
    atomic_write(path, card.to_markdown().encode())
