"""What the measurements mean: report, comparison, projection and bench; all over records."""
