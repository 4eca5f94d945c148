"""Lives of a job behind lives of the daemon: both are ended by SIGKILL, again and again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.spark.kill_rounds import BURST, ROWS_A_BATCH, Rounds
from tests.support.daemon_process import DaemonProcess


@dataclass
class DaemonRounds(Rounds):
    """Rounds whose events `produce-events` reads out of a file, and sends.

    Attributes:
        folder: Of the file and the journal.
        kills: How often the daemon was killed with batches that had no answer.
        recovered: How many events its lives found in the journal.
    """

    folder: Path = field(default_factory=Path)
    kills: int = 0
    recovered: int = 0
    _daemon: DaemonProcess | None = None

    def feed(self, events: int = BURST) -> None:
        """Append so many, which the daemon sends; with a burst it is killed, and restarted."""
        self._append(events)
        daemon = self._daemon or self._start()
        if events >= BURST:
            daemon.kill_with_unacked_batches(
                self.folder / "journal", lambda: self._append(ROWS_A_BATCH)
            )
            self.kills += 1
            daemon = self._start()
        self._daemon = daemon

    def finish(self) -> dict[str, int]:
        """The last lives, of the daemon and of the job, do the rest."""
        assert self._daemon is not None
        self._daemon.kill()
        report = self._start("--no-follow").end()
        assert report["not_persisted"] == report["possibly_persisted"] == 0
        assert self.recovered > 0, "no life of the daemon was ended in the middle of anything"
        return super().finish()

    def close(self) -> None:
        if self._daemon is not None:
            self._daemon.kill()

    def _append(self, events: int) -> None:
        with (self.folder / "events.jsonl").open("a") as file:
            file.writelines(f"{value}\n" for _, value in self.numbered(events))

    def _start(self, *flags: str) -> DaemonProcess:
        daemon = DaemonProcess(
            self.kafka.bootstrap_servers,
            self.folder / "state",
            *("--topic", self.settings.input_topics[0], "--name", "survivor", "--key", "json:key"),
            *("--source", f"file:{self.folder / 'events.jsonl'}", "--poll-interval", "10 ms"),
            *("--journal", str(self.folder / "journal"), *flags),
        )
        self.recovered += daemon.wait_for("producer started")["recovered"]
        return daemon
