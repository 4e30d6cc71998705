"""The systems that the benchmarks compare."""
