"""`python -m ddbench`: the command line, also from a checkout that is not installed."""

from ddbench.cli import main

if __name__ == "__main__":
    main(prog_name="ddbench")
