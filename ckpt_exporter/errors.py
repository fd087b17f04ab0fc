"""The exceptions of this program; ``str(error)`` is the line a user reads."""

from __future__ import annotations


class CkptExporterError(Exception):
    """Base of every error that is reported in one line instead of a traceback (exit status 1)."""


class UsageError(CkptExporterError):
    """A mistake on the command line (exit status 2)."""


class ConfigError(CkptExporterError):
    """One or more problems of a configuration file (exit status 2).

    ``problems`` holds one line each, in the order of the file.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
