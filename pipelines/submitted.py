"""Arguments and output of a driver that spark-submit has started.

spark-submit runs Python as a child of its JVM, and relays what Python writes on either stream to
the JVM's standard output. A program that reads steps there would read warnings among them. So the
driver has the JVM relay each stream to where it belongs, by a pipe of its own.

Where the locale is C, JVMs turn letters that are not ASCII into question marks, in arguments and in
names of files. The commands give them another locale; a job that has none is refused.
"""

from __future__ import annotations

import codecs
import locale
import os
import shutil
import sys
from pathlib import Path
from typing import Any, Final

_STDOUT, _STDERR = 1, 2
_JVM_WITH_OUTPUT: Final = "_SEQUITUR_JVM_WITH_OUTPUT"
"""The id of the JVM that has standard output as its standard input: see `hand_output_on`."""
_DESCRIPTORS: Final = Path("/proc/self/fd")


def is_submitted() -> bool:
    """Whether spark-submit started this process: then the JVM runs already, with its own jars."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def check_arguments() -> None:
    """End the program if spark-submit has not handed on an argument unchanged."""
    from sequitur.base.program import REFUSED_EXIT_CODE, complain  # noqa: PLC0415 - takes a while

    # A letter has two bytes or more, and each byte becomes a question mark.
    lost = [word for word in sys.argv[1:] if "??" in word]
    if is_submitted() and lost and _is_ascii(jnu_encoding(_jvm())):
        complain(
            f"sequitur: argument {lost[0]!r}: spark-submit makes question marks of letters that "
            "are not ASCII, for its locale is C: set LC_ALL to one of UTF-8, such as C.UTF-8"
        )
        sys.exit(REFUSED_EXIT_CODE)


def jnu_encoding(jvm: Any) -> str:
    return str(jvm.java.lang.System.getProperty("sun.jnu.encoding"))


def java_locale() -> dict[str, str]:
    """Return what to add to a JVM's environment, so that it can name any file."""
    return {"LC_ALL": "C.UTF-8"} if _is_ascii(locale.getencoding()) else {}


def _is_ascii(encoding: str) -> bool:
    return codecs.lookup(encoding).name == "ascii"


def _jvm() -> Any:
    from pyspark import SparkContext  # noqa: PLC0415 - what its import warns of is to be separated

    SparkContext._ensure_initialized()  # noqa: SLF001 - Spark offers no other way to the JVM
    return SparkContext._jvm  # noqa: SLF001


def hand_output_on() -> dict[str, str]:
    """Give standard output to the spark-submit that this process becomes, for its driver alone.

    What the JVM itself prints goes to standard error from then on. The place of standard input is
    one that the JVM inherits, reads nothing from, and can name, whatever kind of file it is.

    Returns:
        What to add to its environment.
    """
    if not _DESCRIPTORS.is_dir():
        return {}
    os.dup2(_STDOUT, 0)
    os.dup2(_STDERR, _STDOUT)
    return {_JVM_WITH_OUTPUT: str(os.getpid())}


def separate_output() -> None:
    """Let standard output and standard error lead where they lead without a JVM in between."""
    if not is_submitted() or not _DESCRIPTORS.is_dir():
        return
    if os.environ.pop(_JVM_WITH_OUTPUT, "") == str(os.getppid()):
        _relay(_STDOUT)
    elif os.path.samestat(os.fstat(_STDOUT), os.fstat(_STDERR)):
        merged, said = os.dup(_STDERR), os.memfd_create("standard error")
        os.dup2(said, _STDERR)
        try:
            # What passes our output on has the former stream.
            system = _jvm().java.lang.System
            system.setOut(system.err)
            _relay(_STDERR)
        except BaseException:
            os.dup2(merged, _STDERR)
            raise
        finally:
            os.close(merged)
            os.lseek(said, 0, os.SEEK_SET)
            with os.fdopen(said, "rb") as early, os.fdopen(_STDERR, "wb", closefd=False) as late:
                shutil.copyfileobj(early, late)


def _relay(descriptor: int) -> None:
    """Have the JVM write this stream's output to where the stream leads."""
    jvm = _jvm()
    java = jvm.java
    target = java.lang.System.err
    if descriptor == _STDOUT:
        # It goes on when the reader is gone, as `System.out` does.
        target = java.io.PrintStream(
            java.io.FileOutputStream(getattr(java.io.FileDescriptor, "in"))
        )
    reader, writer = os.pipe()
    source = java.io.FileInputStream(f"/proc/{os.getpid()}/fd/{reader}")
    jvm.org.apache.spark.util.RedirectThread(source, target, "output of the driver", False).start()
    os.dup2(writer, descriptor)
    os.close(reader)
    os.close(writer)
