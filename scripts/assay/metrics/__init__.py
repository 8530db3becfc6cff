"""Formulas: from the table of requests and the server's counters to numbers. Pure functions."""
