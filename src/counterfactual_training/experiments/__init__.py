"""What to run: the demo, models of named data sets, the experiments of the paper."""
