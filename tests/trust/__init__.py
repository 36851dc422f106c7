"""A checkpoint is untrusted: what a hostile one may ask for, and the answer it gets."""
