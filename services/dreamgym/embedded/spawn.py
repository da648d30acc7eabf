"""Start a command that dies with its supervisor.

Run as a script, before the real program: it leaves root, asks the kernel for a signal when the supervisor dies, and
replaces itself by the command. It imports as little as possible, because every service start waits for it.

    python -I -S spawn.py PARENT_PID DEATH_SIGNAL UID GID CWD -- COMMAND...     (UID and GID -1: stay who we are)
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, death_signal, uid, gid = (int(argument) for argument in arguments[:4])
    folder, command = arguments[4], arguments[6:]
    prctl = None
    if sys.platform.startswith("linux"):  # elsewhere the guard stands alone
        import ctypes  # loaded while we may still read our own libraries

        prctl = ctypes.CDLL(None, use_errno=True).prctl
    os.chdir(folder)
    os.umask(0o077)
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # After the change of user, which would clear it.
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(125)
    # Python ignores these two, and what is ignored stays so across exec.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - a command of our own, no shell wanted
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main(sys.argv[1:])
