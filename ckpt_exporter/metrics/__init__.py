"""Metrics out: the catalogue of names, and collectors that read one snapshot."""

from __future__ import annotations

from ckpt_exporter.metrics.exposition import expose, render_text
from ckpt_exporter.metrics.registry import build_registry

__all__ = ["build_registry", "expose", "render_text"]
