"""Text: parallel files and the subword model."""
