"""`python -m sequitur.producer` is `produce-events`."""

from sequitur.producer.daemon.cli import main

if __name__ == "__main__":
    main()
