"""Fuzzing of everything that reads a checkpoint: targets, their corpus, and mutations of it.

`python fuzz/run.py --minutes 10` is the long form; a short one runs with the tests.
"""
