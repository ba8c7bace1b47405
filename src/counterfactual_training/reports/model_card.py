"""The model card as a file."""

from __future__ import annotations

from pathlib import Path

from counterfactual_training.persistence import atomic_write
from counterfactual_training.tables.card import Card


def write_card(card: Card, path: str | Path) -> None:
    """Write a card as Markdown."""
    atomic_write(path, card.to_markdown().encode())
