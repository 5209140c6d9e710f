"""Commands of `gmi-drl` in a terminal of their own."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time

# In a session of its own, so that its terminal's Ctrl-C is a signal for it.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "gmi_drl", *sys.argv[1:]])
"""
SEQUENCE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\r")


class Terminal:
    """A command with a terminal of so many columns, and all that it has written there."""

    def __init__(self, columns, *words):
        self.written = b""
        self._main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        without = ("COLUMNS", "LINES", "NO_COLOR")
        env = {key: value for key, value in os.environ.items() if key not in without}
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *words], stdin=side, stdout=side, stderr=side,
            start_new_session=True, env={**env, "TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(side)

    def until(self, wanted):
        """Reads until this is written, or (None) to the end."""
        deadline_s = time.monotonic() + 200
        while wanted is None or wanted not in self.written:
            assert time.monotonic() < deadline_s, self.written
            try:
                piece = os.read(self._main, 65536)
            except OSError:  # the last who had it open has closed it
                piece = b""
            if not piece:
                assert wanted is None, self.written
                return
            self.written += piece

    def press_ctrl_c(self):
        os.write(self._main, b"\x03")

    def lines(self):
        """What stands on lines of their own, without what was drawn over."""
        text = self.written.decode()
        return [SEQUENCE.sub("", line.split("\x1b[2K")[-1]) for line in text.split("\n")]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._main)
