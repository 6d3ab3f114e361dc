"""Where the files of checkpoints lie: in a directory, or under a URL of an object store."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil

from ..errors import BandoneonError, FailedPrecondition, InvalidArgument, ResourceExhausted

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def open_storage(where):
    """A Directory of a path, a Store of a URL such as s3://bucket/run1."""
    text = os.fspath(where)
    if not isinstance(text, str):
        raise InvalidArgument(f"a checkpoint lies in a directory or under a URL, not in {where!r}")
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Directory(text)
    if scheme == "file":  # It can rename, and says how much room there is.
        return Directory(rest)
    return Store(text)


class Directory:
    """Files of one directory, each of which is there whole or not at all, even after a loss of power."""

    def __init__(self, directory):
        self._directory = directory

    def marker(self, token):
        """What the file is called that says which checkpoint is the complete one."""
        return "checkpoint.json"

    def path(self, name):
        return os.path.join(self._directory, name)

    def create(self):
        try:
            os.makedirs(self._directory, exist_ok=True)
        except OSError as error:
            raise _failure(f"the directory {self._directory} cannot be made", error) from error

    def names(self):
        """Of all that is there, which may be nothing."""
        try:
            return os.listdir(self._directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failure(f"the directory {self._directory} cannot be read", error) from error

    def has(self, name):
        return os.path.exists(self.path(name))

    def open(self, name):
        return open(self.path(name), "rb")

    def remove(self, name):
        with contextlib.suppress(OSError):
            os.remove(self.path(name))

    def write(self, name, dump, num_bytes=None):
        """dump(file) writes the file. After an error what was there before is there still. num_bytes: how
        long it is, where dump() can be called only once."""
        path = self.path(name)
        partial = f"{path}.partial"
        try:
            with open(partial, "wb") as file:
                _dump(dump, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            _bring_to_disk(self._directory or ".")
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.remove(partial)
            if not isinstance(error, OSError) or isinstance(error, BandoneonError):
                raise
            needed = _bytes_of(dump) if num_bytes is None else num_bytes
            free = None
            with contextlib.suppress(OSError):
                free = shutil.disk_usage(self._directory or ".").free
            raise _failure(f"{path} cannot be written", error, needed, free) from error


def _bring_to_disk(directory):
    """What a directory says of its files. Some network file systems cannot do that, and refuse."""
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise
    finally:
        os.close(number)


class Store:
    """Objects under a URL, by fsspec. Such a store has no rename, and may show what is half written: each
    checkpoint has a marker of its own, which is written last."""

    def __init__(self, url):
        scheme = url.partition("://")[0]
        try:
            import fsspec

            self._files, self._root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise InvalidArgument(
                f"{url} is reached by the Python package fsspec and what it needs for {scheme}://, which is not "
                f"installed here: {error}. Install it, or give a directory"
            ) from error
        except ValueError as error:
            raise InvalidArgument(f"fsspec does not take {url}: {error}") from error
        self._url = url.rstrip("/")
        self._root = self._root.rstrip("/")

    def marker(self, token):
        return f"{token}.checkpoint.json"

    def path(self, name):
        return f"{self._url}/{name}"

    def _place(self, name):
        return f"{self._root}/{name}"

    def create(self):
        # Many stores know no directories.
        with contextlib.suppress(Exception):
            self._files.makedirs(self._root, exist_ok=True)

    def names(self):
        with self._errors_of(f"{self._url} cannot be listed"):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._root, detail=False)
            except FileNotFoundError:
                return []
        return [name.rstrip("/").rpartition("/")[2] for name in found]

    def has(self, name):
        return name in self.names()

    def open(self, name):
        return self._files.open(self._place(name), "rb")

    def remove(self, name):
        with contextlib.suppress(Exception):
            self._files.rm_file(self._place(name))

    def write(self, name, dump, num_bytes=None):
        """As Directory's."""
        with self._errors_of(f"{self.path(name)} cannot be written"):
            file = self._files.open(self._place(name), "wb")
        watched = _Watched(file)
        try:
            dump(watched)
        except BaseException as error:
            with contextlib.suppress(Exception):
                file.close()
            self.remove(name)
            if watched.error is None:
                raise
            needed = _bytes_of(dump) if num_bytes is None else num_bytes
            raise _failure(f"{self.path(name)} cannot be written", watched.error, needed) from error
        with self._errors_of(f"{self.path(name)} cannot be written"):
            file.close()

    @contextlib.contextmanager
    def _errors_of(self, what):
        try:
            yield
        except (BandoneonError, FileNotFoundError):
            raise
        except Exception as error:  # Each store has its own.
            raise _failure(what, error) from error


class _Watched:
    """Keeps the first error of a file's write(), in whose place torch.save may raise one of its own."""

    def __init__(self, file):
        self._file = file
        self.error = None

    def write(self, data):
        try:
            return self._file.write(data)
        except Exception as error:
            self.error = self.error or error
            raise

    def flush(self):
        self._file.flush()


def _dump(dump, file):
    watched = _Watched(file)
    try:
        dump(watched)
    except Exception:
        if watched.error is not None:
            raise watched.error from None
        raise


class _Counter:
    def __init__(self):
        self.num_bytes = 0

    def write(self, data):
        self.num_bytes += memoryview(data).nbytes
        return memoryview(data).nbytes

    def flush(self):
        pass


def _bytes_of(dump):
    counter = _Counter()
    dump(counter)
    return counter.num_bytes


def _failure(what, error, needed=None, free=None):
    """What a file system or a store refused, with what it would take."""
    said = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    text = f"{what}: {said}"
    if needed is not None:
        text += f". It takes {needed} bytes"
        text += "" if free is None else f", and its file system has {free} bytes free"
    if getattr(error, "errno", None) not in _NO_ROOM:
        return FailedPrecondition(text)
    return ResourceExhausted(
        f"{text}. A new checkpoint is written beside the one before, which is whole still: make room, and save again"
    )
