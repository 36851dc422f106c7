"""Forward parity: the only room that builds models, of both implementations, MTP head included."""
