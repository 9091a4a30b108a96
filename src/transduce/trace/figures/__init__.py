"""Figures: pictures as SVG, written by hand: for papers, and where no script runs."""
