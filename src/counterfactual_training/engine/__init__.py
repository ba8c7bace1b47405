"""Where independent pieces of work run: processes of this machine, or a Ray cluster."""
