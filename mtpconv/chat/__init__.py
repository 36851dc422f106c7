"""What is tokenized: chat template, tokenizer and loss mask of a checkpoint, without its weights.

Templates are untrusted programs and run only in `worker.py`, a process of its own.
"""
