"""Hostile input in bulk: ``python -m tests.fuzz TARGET --seconds 600``; short runs are in tests/property."""
