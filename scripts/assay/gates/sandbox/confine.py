"""Namespaces, a private file system and limits for the process that runs generated code.

Loaded by path inside the sandbox process, so it imports the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER = 0x00020000, 0x04000000, 0x08000000, 0x10000000
_NEWPID, _NEWNET = 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_NOATIME, _MS_NODIRATIME, _MS_BIND = 32, 1024, 2048, 4096
_MS_REC, _MS_PRIVATE, _MS_RELATIME = 16384, 1 << 18, 1 << 21
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP = 1, 24
_PR_SET_NO_NEW_PRIVS = 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same on every architecture
_LANDLOCK_ALL = (1 << 13) - 1
_LANDLOCK_READ = 1 | 4 | 8  # execute, read a file, read a folder
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_LIBRARY_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64")
_OPEN_FILES = 32


def die_with_parent(libc: ctypes.CDLL) -> None:
    """SIGKILL for this process when its parent ends."""
    _check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent-death signal")


def enter_namespaces(libc: ctypes.CDLL) -> list[str]:
    """New user, network, mount, process, IPC and name namespaces; the next fork is process 1 inside.

    Returns what was entered. Raises OSError where the host does not allow it.
    """
    before = os.readlink("/proc/self/ns/net")
    uid, gid = os.geteuid(), os.getegid()
    rest = _NEWNET | _NEWNS | _NEWPID | _NEWIPC | _NEWUTS
    _check(libc.unshare(_NEWUSER | rest), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as stream:
            stream.write(text)
    if os.readlink("/proc/self/ns/net") == before:
        raise OSError("the network namespace is still the host's")
    return ["user", "network", "mount", "process", "ipc", "uts"]


def enter_private_root(libc: ctypes.CDLL, scratch: str, file_bytes: int, machine: str) -> None:
    """A root with the interpreter's libraries, read-only, and an empty scratch folder, which is the cwd.

    ``scratch`` is an existing empty folder, used as mount point. Raises OSError when a step fails.
    """
    libraries = _library_folders()
    _mount(libc, None, "/", None, _MS_REC | _MS_PRIVATE, None)
    _mount(libc, "tmpfs", scratch, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=64k,nr_inodes=128,mode=755")
    for folder in libraries:
        inside = scratch + folder
        if os.path.islink(folder):
            os.makedirs(os.path.dirname(inside), exist_ok=True)
            os.symlink(os.readlink(folder), inside)
            continue
        if os.path.isdir(inside):
            continue  # already seen through a folder above it
        os.makedirs(inside, exist_ok=True)
        _mount(libc, folder, inside, None, _MS_BIND, None)
        _mount(libc, None, inside, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _kept_flags(folder), None)
    os.mkdir(scratch + "/scratch")
    size = max(file_bytes * 2, 1 << 20)
    options = f"size={size},nr_inodes=256,mode=700"
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _mount(libc, "tmpfs", scratch + "/scratch", "tmpfs", flags, options)
    _mount(libc, None, scratch, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV, None)
    os.chdir(scratch)
    _check(libc.syscall(_PIVOT_ROOT[machine], b".", b"."), "pivot_root")
    _check(libc.umount2(b".", _MNT_DETACH), "leave the old root")
    os.chdir("/scratch")
    if os.listdir("."):
        raise OSError("the scratch folder is not empty")


def restrict_reading(libc: ctypes.CDLL, scratch: str) -> None:
    """Landlock: of the host's files only the interpreter's libraries and the scratch folder can be opened.

    For hosts that allow no private root. Source: Linux's ``Documentation/userspace-api/landlock.rst``; the
    first version of the interface is all that is used. Raises OSError where the kernel has no Landlock.
    """
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    handled = ctypes.c_uint64(_LANDLOCK_ALL)
    ruleset = libc.syscall(_LANDLOCK_CREATE, ctypes.byref(handled), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "no Landlock")
    for folder in [*_library_folders(), scratch]:
        place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", _LANDLOCK_READ, place)
        _check(libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0), f"Landlock rule for {folder}")
        os.close(place)
    _check(libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "Landlock")
    os.close(ruleset)


def drop_capabilities(libc: ctypes.CDLL) -> None:
    """No capability is left, nor one to be had."""
    for number in range(64):
        if libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0):
            break
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(libc.capset(header, nothing), "drop capabilities")


def set_limits(memory_bytes: int, cpu_s: int, file_bytes: int) -> None:
    """Hard limits: address space, CPU time, file size, open files, processes, no core file."""
    for what, soft in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, 1),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        hard = resource.getrlimit(what)[1]
        value = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
        resource.setrlimit(what, (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))


def _library_folders() -> list[str]:
    """Folders the interpreter may still load from: its standard library and the system's shared libraries."""
    wanted = [*_LIBRARY_FOLDERS, os.path.dirname(os.path.realpath(os.__file__))]
    return [folder for folder in dict.fromkeys(wanted) if os.path.isdir(folder)]


def _kept_flags(folder: str) -> int:
    """Flags of the mount a folder lies on: inside a user namespace they may not be taken away."""
    present = os.statvfs(folder).f_flag
    flags = _MS_NOSUID | _MS_NODEV
    for theirs, ours in ((8, _MS_NOEXEC), (1024, _MS_NOATIME), (2048, _MS_NODIRATIME), (4096, _MS_RELATIME)):
        if present & theirs:
            flags |= ours
    return flags


def _mount(
    libc: ctypes.CDLL, source: str | None, target: str, kind: str | None, flags: int, data: str | None
) -> None:
    parts = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    done = libc.mount(parts[0], parts[1], parts[2], ctypes.c_ulong(flags), parts[3])
    _check(done, f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
