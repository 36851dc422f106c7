"""One verdict out of many checks, before an export or an upload."""
