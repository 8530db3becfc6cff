"""A seccomp filter for generated code: no network, no new process, no signal, no mount, no way out.

Loaded by path inside the sandbox process, so it imports the standard library only. Classic BPF, as
documented in Linux's ``Documentation/userspace-api/seccomp_filter.rst``; syscall numbers from the kernel's
``syscall_64.tbl`` and ``asm-generic/unistd.h``.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

# name: (x86_64, aarch64); None where the architecture has no such call
_NETWORK = {
    "socket": (41, 198),
    "connect": (42, 203),
    "accept": (43, 202),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "bind": (49, 200),
    "listen": (50, 201),
    "socketpair": (53, 199),
    "accept4": (288, 242),
    "sendmmsg": (307, 269),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
_PROCESSES = {
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "setpgid": (109, 154),
    "setsid": (112, 157),
}
_KERNEL = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "setrlimit": (160, 164),
    "prlimit64": (302, 261),
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "capset": (126, 91),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
}
# used only where no private file system could be made
_FILE_WRITES = {
    "creat": (85, None),
    "openat2": (437, 437),
    "rename": (82, None),
    "mkdir": (83, None),
    "rmdir": (84, None),
    "link": (86, None),
    "unlink": (87, None),
    "symlink": (88, None),
    "chmod": (90, None),
    "chown": (92, None),
    "lchown": (94, None),
    "mknod": (133, None),
    "truncate": (76, 45),
    "fchmod": (91, 52),
    "fchown": (93, 55),
    "mkdirat": (258, 34),
    "mknodat": (259, 33),
    "fchownat": (260, 54),
    "unlinkat": (263, 35),
    "renameat": (264, 38),
    "linkat": (265, 37),
    "symlinkat": (266, 36),
    "fchmodat": (268, 53),
    "utimensat": (280, 88),
    "renameat2": (316, 276),
    "fchmodat2": (452, 452),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
_OPEN_BY_FLAGS = {"open": (2, None, 1), "openat": (257, 56, 2)}
"""name: (x86_64, aarch64, which argument holds the flags)"""

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_WRITE_FLAGS = 0o1 | 0o2 | 0o100 | 0o1000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
_X32_BIT = 0x40000000

_LD_ABS, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def is_known_architecture() -> bool:
    return platform.machine() in _ARCHITECTURES


def program(machine: str, *, deny_writes: bool) -> bytes:
    """The BPF program for ``machine``: denied calls fail with EPERM, everything else is allowed."""
    column, audit_arch = _ARCHITECTURES[machine]
    refuse = _ERRNO | errno.EPERM
    code = [_op(_LD_ABS, 4), _op(_JEQ, audit_arch, 1, 0), _op(_RET, _KILL), _op(_LD_ABS, 0)]
    if machine == "x86_64":  # the x32 numbers would go round the list
        code += [_op(_JGE, _X32_BIT, 0, 1), _op(_RET, _KILL)]
    denied = {**_NETWORK, **_PROCESSES, **_KERNEL, **(_FILE_WRITES if deny_writes else {})}
    for numbers in denied.values():
        number = numbers[column]
        if number is not None:
            code += [_op(_JEQ, number, 0, 1), _op(_RET, refuse)]
    if deny_writes:
        for *numbers_only, argument in _OPEN_BY_FLAGS.values():
            number = numbers_only[column]
            if number is not None:
                code += [
                    _op(_JEQ, number, 0, 4),
                    _op(_LD_ABS, 16 + 8 * argument),
                    _op(_JSET, _WRITE_FLAGS, 0, 1),
                    _op(_RET, refuse),
                    _op(_RET, _ALLOW),
                ]
    return b"".join([*code, _op(_RET, _ALLOW)])


def install(libc: ctypes.CDLL, *, deny_writes: bool) -> None:
    """Put the filter on this process, for good. Raises OSError where the kernel does not take it."""
    text = program(platform.machine(), deny_writes=deny_writes)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    described = _Program(len(text) // 8, text)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(described), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp filter")


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
