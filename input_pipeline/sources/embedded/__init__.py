"""Data that comes with the installed packages: no download."""
