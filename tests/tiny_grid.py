"""A grid of four settings that a test can afford."""

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
