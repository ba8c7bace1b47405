"""Classifiers and the generative model that REVISE searches in."""
