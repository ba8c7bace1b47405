"""Runs: data x method x seed x measurement, identified by content and kept in one store."""
