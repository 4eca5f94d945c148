"""`python -m sequitur` is `sequitur`."""

from sequitur._entry import sequitur

if __name__ == "__main__":
    sequitur()
