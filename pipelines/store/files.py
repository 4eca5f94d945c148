"""Files of a checkpoint, wherever it is: on a path, in an object store, or in HDFS.

The driver and its tasks open, write and delete them by their *location*: a `Path`, or an
`RemotePath`, with those of a path's methods that are needed here. Either can be pickled.

A file is written once, by one attempt, under a name that nobody else has, and is there from then
on: so nobody renames files, and nobody lists a folder to know what counts. That says the document
that names them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa

from sequitur.pipelines.store import durable
from sequitur.pipelines.store.hdfs_path import HdfsPath
from sequitur.pipelines.store.object_path import ObjectPath
from sequitur.pipelines.store.sharing import admit, make_folders, not_shared

Location: TypeAlias = Path | ObjectPath | HdfsPath
OVERSIZED_FOLDER: Final = "oversized"
"""Rows that are too large for a topic, in files by topic that no step deletes."""


def is_remote(location: Location) -> bool:
    """Tell whether each reading of it costs a way over the network."""
    return not isinstance(location, Path)


def open_file(location: Location) -> pa.NativeFile:
    """Open a file for reading at any place in it."""
    return pa.OSFile(str(location), "rb") if isinstance(location, Path) else location.open_input()


def new_file(location: Location) -> pa.NativeFile:
    """Open a file for writing, which is there once it is closed; its folder is there already."""
    if not isinstance(location, Path):
        return location.open_output()
    try:
        file = pa.OSFile(str(location), "wb")
    except PermissionError as error:
        raise not_shared(location.parent) from error
    try:
        admit(location)
    except BaseException:
        file.close()
        raise
    return file


def new_folder(location: Location, *, may_be_there: bool = False) -> None:
    """Make a folder for files of tasks; it need not outlast a power cut before they do."""
    if isinstance(location, Path):
        make_folders(location, may_be_there=may_be_there)


def sync(location: Location) -> None:
    """Return once a file that was closed outlasts a power cut; elsewhere than on a path it does."""
    if isinstance(location, Path):
        durable.sync(location)


def files_in(folder: Location) -> list[Location]:
    """Return what is in a folder, by name; nothing where there is no such folder."""
    try:
        found: list[Location] = [*folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda one: one.name)


def delete_all(location: Location) -> None:
    """Delete a folder with all that is in it."""
    if isinstance(location, Path):
        shutil.rmtree(location)
    else:
        location.delete_all()


def write_new(location: Location, content: bytes) -> None:
    """Write a file that nobody has been told of yet."""
    with new_file(location) as file:
        file.write(content)


def write_aside(location: Location, content: bytes) -> None:
    """Write a file whole or not at all; nothing that is to last may rest on it."""
    if not isinstance(location, Path):
        location.write_bytes(content)
        return
    with durable.written_aside(location) as hidden:
        write_new(hidden, content)


def write_whole(location: Location, content: bytes) -> None:
    """Write a file whole or not at all, over what is there; when this returns it will last."""
    if not isinstance(location, Path):
        location.write_bytes(content)
        return
    durable.make_folder(location.parent)
    with durable.written_aside(location) as hidden:
        hidden.write_bytes(content)
        durable.sync(hidden)
    durable.sync(location.parent)
