"""Benchmarks: ratios measured within one run; `make bench` runs all of them."""
