"""`python -m chronos` is the command line."""

from chronos.cli import main

if __name__ == "__main__":
    main()
