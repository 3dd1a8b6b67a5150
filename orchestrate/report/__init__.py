"""Findings, plans and runs as text and JSON: the only room that prints. Judges nothing."""
