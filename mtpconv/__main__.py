"""`mtpconv` and `python -m mtpconv`."""

import sys


def main() -> None:
    """Entry point. Ctrl-C is one line while the command line is still being imported, too."""
    try:
        from mtpconv.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was begun\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
