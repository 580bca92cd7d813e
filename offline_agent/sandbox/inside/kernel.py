"""System calls that Python has no function for: namespaces, mounts, capabilities, seccomp."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS = 1, 4, 22, 24, 28
_PR_SET_KEEPCAPS, _DAC_READ_SEARCH = 8, 2
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47

# name: (x86_64, aarch64); None = the architecture has no such call
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "vmsplice": (278, 75), "memfd_secret": (447, 447),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # memory and messages that outlive a process, or that no limit of files or address space counts
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "memfd_create": (319, 279),
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "sethostname": (170, 161), "acct": (163, 89),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "syslog": (103, 116), "personality": (135, 92),
}  # fmt: skip
_LANDLOCK = 444  # landlock_create_ruleset, _add_rule, _restrict_self
# write; remove folders, files; make devices, folders, files, sockets, pipes, blocks, links; then move (Linux 5.19) and
# truncate (6.2)
_WRITING = (1 << 1, *(1 << bit for bit in range(4, 15)))
_CLONE, _CLONE3, _SOCKET, _TGKILL, _MMAP = (56, 220), (435, 435), (41, 198), (234, 131), (9, 222)
# (call, place of an argument, value): larger pipes and sockets, which no limit counts
_ENLARGE = (((72, 25), 24, 1031), ((54, 208), 32, 7))  # fcntl F_SETPIPE_SZ, setsockopt SO_SNDBUF
_SIGNALS = ((62, 129), (200, 130), (424, 424))  # kill, tkill, pidfd_send_signal
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NAMESPACES = NEWNS | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET | 0x02000000
_MAP_ANONYMOUS = 0x20
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


def checked(result: int, what: str) -> None:
    """Raise OSError where a call of the C library failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process (for NEWPID: its future children) into new namespaces."""
    checked(_libc.unshare(flags), "unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount; see mount(2)."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    checked(_libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]), f"mount {target}")


def detach(target: str) -> None:
    """Unmount lazily."""
    checked(_libc.umount2(os.fsencode(target), 2), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Change the root of the mount namespace."""
    number = 155 if platform.machine() == "x86_64" else 41
    checked(_libc.syscall(number, os.fsencode(new), os.fsencode(old)), "pivot_root")


def _prctl(option: int, *arguments: int) -> int:
    return int(_libc.prctl(option, *[ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]))


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ended."""
    checked(_prctl(_PR_SET_CHILD_SUBREAPER, 1), "prctl")


def end_with_parent() -> None:
    """Have this process killed when its parent ends."""
    checked(_prctl(_PR_SET_PDEATHSIG, 9), "prctl")


def hide() -> None:
    """Keep other processes of the same user from reading this one through /proc."""
    checked(_prctl(_PR_SET_DUMPABLE, 0), "prctl")


def show() -> None:
    """Undo `hide`: this process's own /proc/self is readable."""
    checked(_prctl(_PR_SET_DUMPABLE, 1), "prctl")


def drop_capabilities() -> None:
    """Give up every capability for good; for a process of a user namespace whose user stays 0."""
    for capability in range(64):
        if _prctl(_PR_CAPBSET_DROP, capability) != 0:
            break
    _prctl(_PR_CAP_AMBIENT, 4)
    _prctl(_PR_SET_SECUREBITS, 0x2F)  # root's number means nothing, and that is locked
    header = struct.pack("II", 0x20080522, 0)
    checked(_libc.capset(header, bytes(24)), "capset")


def become(user: int, reading: bool) -> None:
    """Become an unprivileged user; for root. Root itself is exempt from limits of processes, other users are not.

    Args:
        user: Its number, and its group's.
        reading: Go on reading what root may read: where Python's own files are in root's home.
    """
    for capability in range(64):
        if not (reading and capability == _DAC_READ_SEARCH) and _prctl(_PR_CAPBSET_DROP, capability) != 0:
            break
    os.setgroups([])
    os.setresgid(user, user, user)
    _prctl(_PR_SET_KEEPCAPS, int(reading))
    os.setresuid(user, user, user)
    if reading:
        kept = 1 << _DAC_READ_SEARCH
        header = struct.pack("II", 0x20080522, 0)
        checked(_libc.capset(header, struct.pack("6I", kept, kept, kept, 0, 0, 0)), "capset")
        checked(_prctl(_PR_CAP_AMBIENT, 2, _DAC_READ_SEARCH), "prctl")
    show()


def confine_writes(folder: str) -> bool:
    """Let this process and its children write, make and remove files below a folder alone, and write to /dev/null.

    Returns:
        Whether that was set; False where the kernel has no Landlock (Linux 5.13).
    """
    version = _libc.syscall(_LANDLOCK, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    rights = sum(_WRITING[:-2]) | (_WRITING[-2] if version > 1 else 0) | (_WRITING[-1] if version > 2 else 0)
    ruleset = _libc.syscall(_LANDLOCK, struct.pack("Q", rights), ctypes.c_size_t(8), 0)
    for path, allowed in ((folder, rights), ("/dev/null", rights & (_WRITING[0] | _WRITING[-1]))):
        place = os.open(path, os.O_PATH)
        rule = struct.pack("=Qi", allowed, place)
        checked(_libc.syscall(_LANDLOCK + 1, ruleset, 1, rule, 0), "landlock_add_rule")
        os.close(place)
    checked(_libc.syscall(_LANDLOCK + 2, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)
    return True


def no_new_privileges() -> None:
    """Make set-user-id programs powerless."""
    checked(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "prctl")


def filter_calls(unix_sockets: bool, signals: bool) -> bool:
    """Refuse namespaces, mounts, tracing, kernel interfaces and network sockets to this process and its children.

    Args:
        unix_sockets: Whether sockets of the machine itself may be made (where no others can be reached by them).
        signals: Whether other processes may be signalled (where none but its own can be reached).

    Returns:
        Whether the filter was set; False where the architecture is not known or the kernel has no seccomp.
    """
    machine = platform.machine()
    if machine not in _AUDIT:
        return False
    program = filter_program(machine, unix_sockets, None if signals else os.getpid())
    buffer = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    holder = ctypes.create_string_buffer(described, len(described))
    return _prctl(_PR_SET_SECCOMP, 2, ctypes.addressof(holder)) == 0


def filter_program(machine: str, unix_sockets: bool, alone: int | None = None) -> bytes:
    """Return the BPF program of `filter_calls`: 8 bytes an instruction.

    Args:
        machine: `x86_64` or `aarch64`.
        unix_sockets: See `filter_calls`.
        alone: The one process that may be signalled, which is the caller; None = any.
    """
    column = 0 if machine == "x86_64" else 1
    load, equal, at_least, any_of, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    steps = [(load, 0, 0, 4), (equal, 1, 0, _AUDIT[machine]), (answer, 0, 0, _KILL), (load, 0, 0, 0)]
    if machine == "x86_64":  # the x32 variants have numbers of their own
        steps += [(at_least, 0, 1, 0x40000000), (answer, 0, 0, _EPERM)]
    for numbers in _REFUSED.values():
        number = numbers[column]
        if number is not None:
            steps += [(equal, 0, 1, number), (answer, 0, 0, _EPERM)]
    if alone is not None:
        for numbers in _SIGNALS:
            steps += [(equal, 0, 1, numbers[column]), (answer, 0, 0, _EPERM)]
        steps += [(equal, 0, 4, _TGKILL[column]), (load, 0, 0, 16), (equal, 0, 1, alone)]
        steps += [(answer, 0, 0, _ALLOW), (answer, 0, 0, _EPERM)]
    for numbers, place, value in _ENLARGE:
        steps += [(equal, 0, 4, numbers[column]), (load, 0, 0, place), (equal, 0, 1, value)]
        steps += [(answer, 0, 0, _EPERM), (answer, 0, 0, _ALLOW)]
    # memory that is shared and belongs to no file: it stays after a part of it was unmapped, and nothing shows it
    steps += [(equal, 0, 5, _MMAP[column]), (load, 0, 0, 40), (any_of, 0, 2, _MAP_ANONYMOUS), (any_of, 0, 1, 1)]
    steps += [(answer, 0, 0, _EPERM), (answer, 0, 0, _ALLOW)]
    # the C library falls back to clone, whose flags a filter can read
    steps += [(equal, 0, 1, _CLONE3[column]), (answer, 0, 0, _ENOSYS)]
    steps += [(equal, 0, 4, _CLONE[column]), (load, 0, 0, 16), (any_of, 0, 1, _NAMESPACES)]
    steps += [(answer, 0, 0, _EPERM), (answer, 0, 0, _ALLOW)]
    steps += [(equal, 0, 3 if unix_sockets else 1, _SOCKET[column])]
    steps += [(load, 0, 0, 16), (equal, 1, 0, 1)] if unix_sockets else []
    steps += [(answer, 0, 0, _EPERM), (answer, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
