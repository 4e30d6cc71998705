"""One file per toolkit: how its checkpoints are recognised, read and, for some, written."""
