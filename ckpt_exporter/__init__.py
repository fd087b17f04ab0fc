"""Measure checkpoint saves of training jobs from outside and export them to Prometheus."""

__version__ = "0.1.0"
