"""Benchmarks, each run as `python -m benchmarks.NAME`; results/README.md explains the recorded numbers.

translating   decode, decode_base_size, decode_profile, stopping_rules
training      train_throughput, scaling
correctness   gpu_checks, conversion_marian
all on a GPU  gpu

`shared/` has the code that several of them use.
"""
