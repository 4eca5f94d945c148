"""The first bytes of a file: they tell it from others, and whether it has lines at all."""

from __future__ import annotations

import codecs
import contextlib
import errno
import hashlib
import os
import re
from typing import TYPE_CHECKING, Final

from sequitur.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

HEAD_BYTES: Final = 1 << 10
"""How much of a file's beginning tells it from others."""
CHUNK_BYTES: Final = 256 << 10
_ARCHIVE: Final = re.compile(
    r".\.(?:gz|bz2|xz|zst|lz4|Z|br|lz|lzma|zip|7z|rar|tar|tgz|tbz2?|txz)$",
    re.DOTALL | re.IGNORECASE,
)
_MAGIC: Final = (
    *(b"\x1f\x8b", b"\x1f\x9d", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"),
    *(b"]\0\0", b"PK\x03\x04", b"PK\x05\x06", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07"),
)
"""How compressed files begin: gzip, compress, xz, zstd, lz4, lzma; zip (also empty), 7z and rar."""
_BZIP2: Final = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
_WIDE: Final = re.compile(rb"(?:[^\0]\0){4}|(?:[^\0]\0{3}){3}")
"""How UTF-16 and UTF-32 begin without a mark: letters of ASCII, and NULs between them."""
_CONTROL: Final = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]")
"""Control characters of no text; an escape stands in text with colours."""


def head_at(descriptor: int) -> tuple[int, bytes]:
    """`head_of` of an open file, which need not read what the file system knows to be a hole."""
    start = end_of_hole(descriptor, 0)
    os.lseek(descriptor, start, os.SEEK_SET)
    with open(descriptor, "rb", closefd=False, buffering=0) as file:
        return head_of(file, start)


def head_of(file: IO[bytes], start: int = 0) -> tuple[int, bytes]:
    """Return where the content of a file begins behind a hole at its start, and its first bytes.

    NULs would tell nothing: each generation that was copied and cut may begin with them, and those
    at the end may be overwritten.
    """
    offset = start
    while chunk := file.read(HEAD_BYTES if offset == start else CHUNK_BYTES):
        head = chunk.lstrip(b"\0")
        offset += len(chunk) - len(head)
        if head:
            return offset, sample(head + file.read(max(0, HEAD_BYTES - len(head))))
    return offset, b""


def end_of_hole(descriptor: int, start: int) -> int:
    """Return where a file has data again, as far as the file system can tell."""
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA)
    except OSError as error:  # nothing is behind the hole, or the file system cannot tell
        size = os.fstat(descriptor).st_size
        return max(start, size) if error.errno == errno.ENXIO else start


def sample(content: bytes) -> bytes:
    return content[:HEAD_BYTES].rstrip(b"\0")


def digest(data: bytes) -> str:
    """Return 16 hexadecimal digits that stand for some bytes."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def why_no_lines(name: str, head: bytes, *, is_text: bool) -> str | None:
    """Return why a file with this name and these first bytes has no lines; None if it may."""
    if _ARCHIVE.search(name) or head.startswith(_MAGIC) or _BZIP2.match(head):
        return "it is compressed or an archive: unpack it"
    if head.startswith(_UTF_16) or _WIDE.match(head):
        return "it is UTF-16 or UTF-32: convert it to UTF-8"
    if is_text or not _CONTROL.search(head):
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # its end may cut a character
        is_binary = b"\0" in head
    except UnicodeDecodeError:
        is_binary = True
    return "it is binary, and no lines of JSON" if is_binary else None


def require_uncompressed(path: Path) -> None:
    """Refuse a file that has no lines. One that is not there may come."""
    if not path.is_file():
        return
    with contextlib.suppress(OSError), path.open("rb") as file:
        require_lines(path, head_at(file.fileno())[1])


def require_lines(path: Path, head: bytes) -> None:
    """Refuse a file that has no lines by its first bytes."""
    if problem := why_no_lines("", head, is_text=True):
        raise SourceError(f"{path} has no lines: {problem}")
