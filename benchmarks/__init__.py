"""Benchmarks; each writes `benchmarks/results/NAME.json` (see `results_file`)."""
