"""Verdicts: findings computed from records, row screens, publication, whole runs, comparisons."""
