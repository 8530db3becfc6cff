"""Extracts: the tables and summaries made from a campaign's receipts and evidence."""
