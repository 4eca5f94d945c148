"""`python -m sequitur.producer` is `produce-events`."""

from sequitur.producer._entry import produce_events

if __name__ == "__main__":
    produce_events()
