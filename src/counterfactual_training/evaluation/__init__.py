"""Evaluation of any torch classifier."""
