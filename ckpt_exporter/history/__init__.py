"""Finished saves, loads and stalls, kept over restarts."""
