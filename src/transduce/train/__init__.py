"""Training: from settings to a model directory."""
