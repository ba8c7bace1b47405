"""Defaults of a comparison; loads nothing heavy, because `ct compare --help` shows them."""

from __future__ import annotations

# Input gradients per row and epoch that a regime may take to find attacks, samples or counterfactuals.
GRADIENTS = 20
# Searches that the models are measured by.
GENERATORS = ("ecco", "generic")
MEMBERS = 5
