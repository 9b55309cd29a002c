"""Saved results in, figures and one HTML page out. Nothing here imports torch or an analysis."""
