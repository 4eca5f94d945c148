"""How a wait says that the job is asked to stop."""


class StopRequestedError(Exception):
    """Work that waits, or was about to begin, gives way to a stop; the next start goes on."""
