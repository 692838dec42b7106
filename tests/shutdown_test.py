"""SIGTERM lets requests under way finish or tells them why not; a second one ends the program at once."""

import json
import signal
import time
import unittest
import urllib.error
import urllib.request

from serving import Server

# No stop id counts, and there is room for it: seconds of work.
ENDLESS = {"prompt": "What", "max_tokens": 3900, "ignore_eos": True, "stream": True}


class ShutdownTest(unittest.TestCase):
    def start(self, *flags):
        server = Server(*flags).__enter__()
        self.addCleanup(server.program.kill)
        request = urllib.request.Request(server.url + "/v1/completions", json.dumps(ENDLESS).encode(),
                                         {"Content-Type": "application/json"})
        stream = urllib.request.urlopen(request, timeout=60)
        self.assertTrue(stream.readline().startswith(b"data: {"))
        return server, stream

    def end(self, server):
        server.reader.join()
        server.program.stderr.close()

    def wait_for_503(self, server):
        for _ in range(200):
            try:
                urllib.request.urlopen(server.url + "/health", timeout=5)
            except urllib.error.HTTPError as answer:
                self.assertEqual(answer.code, 503)
                self.assertTrue(answer.headers["Retry-After"])
                return
            except (urllib.error.URLError, ConnectionError):
                pass  # it was idle when the server began to drain
            time.sleep(0.02)
        self.fail("/health never said 503")

    def test_drains(self):
        server, stream = self.start("--shutdown-timeout", "0.5")
        server.program.send_signal(signal.SIGTERM)
        self.wait_for_503(server)
        events = [line for line in stream.read().decode().splitlines() if line]
        self.assertEqual(events[-1], "data: [DONE]")
        last = json.loads(events[-2].removeprefix("data: "))
        if "error" in last:  # it was not done in half a second
            self.assertEqual(last["error"]["code"], "shutting_down")
        else:
            self.assertEqual(last["choices"][0]["finish_reason"], "length")
        self.assertEqual(server.program.wait(timeout=60), 0)
        self.end(server)

    def test_second_signal(self):
        server, stream = self.start("--shutdown-timeout", "600")
        server.program.send_signal(signal.SIGTERM)
        self.wait_for_503(server)
        server.program.send_signal(signal.SIGTERM)
        self.assertEqual(server.program.wait(timeout=60), 128 + signal.SIGTERM)
        stream.close()
        self.end(server)


if __name__ == "__main__":
    unittest.main()
