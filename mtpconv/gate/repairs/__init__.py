"""Repairs, only when asked for: graft, reindex, strip-mtp. Untouched shards are never rewritten."""
