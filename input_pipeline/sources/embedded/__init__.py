"""Data sets made from installed packages, without a download."""
