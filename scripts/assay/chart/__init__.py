"""Charts: byte-stable pictures of entries of chart_data.json."""
