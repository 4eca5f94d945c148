"""The user's settings in Spark's own places: `spark-defaults.conf`, and lists of jars.

The command line wins over `spark-defaults.conf`, and that wins over what this project prefers.
Options that are given when a JVM starts win over the file. Code that adds an option to a start
therefore has to read the file first.
"""

from __future__ import annotations

import functools
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from sequitur.base.extras import load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JARS: Final = "spark.jars"
MASTER: Final = "spark.master"
_CONTINUED: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\\n[ \t\f]*")
_PAIR: Final = re.compile(r"((?:\\.|[^\\\s=:])+)(?:[ \t\f]*[=:][ \t\f]*|[ \t\f]+|$)(.*)")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_SUBMIT: Final = "org.apache.spark.deploy.SparkSubmit"
_LOAD_DEFAULTS: Final = "--load-spark-defaults"
SWITCHES: Final = frozenset(
    ("--help", "-h", _LOAD_DEFAULTS, "--supervise", "--usage-error", "--verbose", "-v", "--version")
)
"""Flags of spark-submit's that no value follows."""
_EXTRA_FILE: Final = "--extra-properties-file"
"""The only flag that counts each time it is given."""
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@functools.cache
def spark_home() -> Path:
    """Return the installed pyspark. It is not loaded: that takes a tenth of a second.

    Raises:
        MissingExtraError: It is not installed.
    """
    found = find_spec("pyspark")
    origin = found and found.origin
    return Path(origin or load("pyspark", "a job on Spark").__file__).parent


def spark_defaults(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the settings in `spark-defaults.conf`; empty without the file."""
    home = Path(environ.get("SPARK_HOME") or spark_home())
    folder = Path(environ.get("SPARK_CONF_DIR") or home / "conf")
    return read_properties(folder / "spark-defaults.conf")


def spark_submit_flags(command: Sequence[str]) -> dict[str, str] | None:
    """Return the flags of spark-submit and the settings of its --conf, by name."""
    if _SUBMIT not in command:
        return None
    told: dict[str, str] = {}
    words = iter(command[command.index(_SUBMIT) + 1 :])
    for word in words:
        if not word.startswith("-"):
            break  # the program: what follows are its own arguments
        flag, is_whole, value = word.partition("=")
        if not is_whole and flag not in SWITCHES:
            value = next(words, "")
        if flag in {"--conf", "-c"}:
            flag, _, value = value.partition("=")
        told[flag] = f"{told[flag]},{value}" if flag == _EXTRA_FILE and flag in told else value
    return told


def submitted_properties(
    flags: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the settings in the files that spark-submit reads, by its flags."""
    file = flags.get("--properties-file")
    found = spark_defaults(environ) if file is None or _LOAD_DEFAULTS in flags else {}
    for one in (file, *flags.get(_EXTRA_FILE, "").split(",")):
        found |= read_properties(Path(one)) if one else {}
    return found


def read_properties(path: Path) -> dict[str, str]:
    """Return the entries of a Java properties file; empty if it cannot be read."""
    try:
        text = path.read_text("utf-8")
    except OSError:
        return {}
    found = {}
    for line in _CONTINUED.sub(r"\1", text).splitlines():
        pair = _PAIR.match(line.lstrip())
        if pair is not None and not pair[0].startswith(("#", "!")):
            found[_unescaped(pair[1])] = _unescaped(pair[2]).strip()
    return found


def _unescaped(text: str) -> str:
    def plain(escape: re.Match[str]) -> str:
        return chr(int(escape[1], 16)) if escape[1] else _CONTROLS.get(escape[2], escape[2])

    return _ESCAPE.sub(plain, text)


def merged_jars(*lists: str | None) -> str:
    """Join lists of jars, each jar once, in the order of the lists."""
    found: dict[str, str] = {}
    for jar in (jar.strip() for one in lists for jar in (one or "").split(",")):
        if jar:
            found.setdefault(_place(jar), jar)
    return ",".join(found.values())


def _place(jar: str) -> str:
    """Return the path of a jar that is a URI of a file here, or else the jar as it is."""
    url = urlsplit(jar)
    return unquote(url.path) if url.scheme == "file" else jar


def is_local(master: str) -> bool:
    return master.startswith("local")
