"""Grids that a test can afford: one of four settings, one of two."""

TINY_GRID = """
data = "LS"
[generator]
name = ["ecco", "generic"]
max_steps = [2, 4]
[training]
epochs = 1
num_counterfactuals = 100
[evaluation]
num_runs = 2
num_individuals = 20
lambda_energy = [0.1, 5.0]
"""

TINIEST_GRID = TINY_GRID.replace('name = ["ecco", "generic"]\n', "")
