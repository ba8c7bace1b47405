"""Plausibility measured free of the step size and of the scale of the logits."""
