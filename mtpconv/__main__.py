"""`python -m mtpconv`."""

from mtpconv.cli import main

main()
