"""Layer 4: what is open now. Imports tables, parts and backends."""
