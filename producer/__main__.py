"""`python -m producer` is `produce-events`."""

from producer._cli import main

if __name__ == "__main__":
    main()
