"""Data: encoded pairs on disk, and which of them go together."""
