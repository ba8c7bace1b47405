"""Defaults of a comparison; loads nothing heavy, because `ct compare --help` shows them."""

from __future__ import annotations

# Input gradients per row and epoch that a method may take to find attacks, samples or
# counterfactuals; as many as the published settings of CT take: 1,000 counterfactuals of 30 steps
# for 3,000 rows, 5,000 for 15,000.
GRADIENTS = 10
# Searches that the models are measured by.
GENERATORS = ("ecco", "generic")
