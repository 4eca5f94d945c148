"""Make every peer's environment, and say which one cannot be had.

python -m benchmarks.peers
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.peers import environments as peers

if TYPE_CHECKING:
    from collections.abc import Callable

_MADE: Final[dict[str, Callable[[], object]]] = {
    "Flink": peers.flink_environment,
    "Flink's process table function": peers.flink_function,
    "Kafka Streams": peers.streams_class_path,
    "Quix Streams": lambda: peers.python_of("quix"),
    "kafka-python": lambda: peers.python_of("kafka_python"),
    "franz-go": peers.go_program,
    "Java's tools": peers.tools_class_path,
}


def main() -> None:
    """Make one after the other."""
    for name, made in _MADE.items():
        try:
            made()
        except peers.PeerMissingError as missing:
            print(f"{name}: {missing}")
        else:
            print(f"{name} is there")


if __name__ == "__main__":
    main()
