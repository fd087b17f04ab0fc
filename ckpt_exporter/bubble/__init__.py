"""What saves cost on the GPUs: activity, baselines, dips, and whose they are. Pure: no clock, no file."""
