"""Code that several benchmarks share; its modules are not run on their own, except decode_alone."""
