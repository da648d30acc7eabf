"""The last one out: waits for the supervisor's end and ends whatever it left.

    python -m dreamgym.embedded.guard STATE

Standard input is a pipe from the supervisor. A byte on it means an orderly stop and nothing to do; end of file
without one means that the supervisor was killed. The state lock is inherited, so that the next platform on the same
state folder waits until this is done.
"""

import os
import signal
import sys
from pathlib import Path

from dreamgym.embedded import orphans


def main(state_dir: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.read(0, 1) == b"":
        (state_dir / "platform.json").unlink(missing_ok=True)
        orphans.end_all(state_dir)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
