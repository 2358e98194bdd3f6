"""Environments as gymnasium environments over text, and the table of tags."""
