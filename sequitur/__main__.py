"""`python -m sequitur` is `sequitur`."""

from sequitur.cli import main

if __name__ == "__main__":
    main()
