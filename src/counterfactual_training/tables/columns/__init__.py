"""Columns with names, units and rules: schema and invertible encoder."""
