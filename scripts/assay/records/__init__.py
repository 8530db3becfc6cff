"""Records on disk: durable writes, schemas, and the table of requests."""
