"""A grid: every combination of settings, trained in fleets."""
