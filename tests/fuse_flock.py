"""`python fuse_flock.py BACKING MOUNT FREEZE TYPE`: a directory seen again through FUSE, with flock(2) handed on to it.

While the file FREEZE exists, whoever opens or locks a file hangs and not even SIGKILL ends him: a file server that is away.
"""

import errno
import fcntl
import os
import sys
import threading
import time

import mfusepy

TIMES = ("st_atime", "st_mtime", "st_ctime")
NUMBERS = ("st_mode", "st_ino", "st_nlink", "st_size", "st_uid", "st_gid")


def telling(call):
    """An OSError of the directory behind is the file system's answer."""

    def wrapped(*args):
        try:
            return call(*args)
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno or errno.EIO) from None

    return wrapped


class Mirror(mfusepy.Operations):
    use_ns = True

    def __init__(self, backing, freeze):
        self._backing, self._freeze = backing, freeze
        self._making = threading.Lock()

    def _at(self, path):
        return self._backing + path

    def _thawed(self):
        while os.path.exists(self._freeze):
            time.sleep(0.02)

    @telling
    def getattr(self, path, fh=None):
        found = os.lstat(self._at(path))
        return {key: getattr(found, key) for key in NUMBERS} | {key: getattr(found, key + "_ns") for key in TIMES}

    @telling
    def readdir(self, path, fh):
        return [".", "..", *os.listdir(self._at(path))]

    @telling
    def readlink(self, path):
        return os.readlink(self._at(path))

    @telling
    def symlink(self, path, target):
        os.symlink(target, self._at(path))

    @telling
    def mkdir(self, path, mode):
        os.mkdir(self._at(path), mode)

    @telling
    def unlink(self, path):
        os.unlink(self._at(path))

    @telling
    def rename(self, old, new):
        os.rename(self._at(old), self._at(new))

    @telling
    def open(self, path, flags):
        self._thawed()
        return os.open(self._at(path), flags & ~(os.O_APPEND | os.O_NOFOLLOW))  # the kernel has seen to both

    @telling
    def create(self, path, mode, fi=None):
        self._thawed()
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT, mode)

    @telling
    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    @telling
    def write(self, path, data, offset, fh):
        return os.pwrite(fh, data, offset)

    @telling
    def truncate(self, path, length, fh=None):
        os.truncate(self._at(path) if fh is None else fh, length)

    @telling
    def fsync(self, path, datasync, fh):
        os.fsync(fh)

    @telling
    def flock(self, path, fh, operation):
        self._thawed()
        fcntl.flock(fh, operation)

    @telling
    def release(self, path, fh):
        os.close(fh)


if __name__ == "__main__":
    backing, mount, freeze, kind = sys.argv[1:]
    # direct_io: what another client has written is seen at once, as after a lock on a network file system
    mfusepy.FUSE(Mirror(backing, freeze), mount, foreground=True, fsname="mirror", subtype=kind, direct_io=True)
