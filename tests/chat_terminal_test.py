"""`nibble chat` on a terminal: what it says to commands."""

import os
import pty
import select
import subprocess
import time
import unittest

from serving import MODEL


class ChatTerminalTest(unittest.TestCase):
    def read_until(self, fd, text):
        seen, deadline = "", time.monotonic() + 60
        while text not in seen:
            ready, _, _ = select.select([fd], [], [], deadline - time.monotonic())
            self.assertTrue(ready, f"{text!r} did not come: {seen!r}")
            seen += os.read(fd, 4096).decode(errors="replace")
        return seen

    def test_commands(self):
        ours, theirs = pty.openpty()
        chat = subprocess.Popen([os.environ["NIBBLE"], "chat", str(MODEL), "--device", "cpu"], stdin=theirs, stdout=theirs,
                                stderr=subprocess.DEVNULL)
        self.addCleanup(chat.kill)
        os.close(theirs)
        self.read_until(ours, "/help lists the commands.")
        os.write(ours, b"/frob\r")
        self.read_until(ours, "unknown: /frob; /help lists the commands")
        os.write(ours, b"/help\r")
        self.read_until(ours, "a new conversation")
        os.write(ours, b"/quit\r")
        self.assertEqual(chat.wait(timeout=60), 0)
        os.close(ours)


if __name__ == "__main__":
    unittest.main()
