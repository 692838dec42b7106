"""A `nibble serve` of a shipped model for the tests that drive it with real clients: of gpt-oss, or $NIBBLE_TEST_MODEL."""

import json
import os
import re
import signal
import subprocess
import threading
import urllib.request
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
MODEL = SOURCE / "models" / os.environ.get("NIBBLE_TEST_MODEL", "nibble-tiny-gpt-oss")
NAME = MODEL.name
DATE = "2026-01-15"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"],
        },
    },
}


class Server:
    """Starts on entering, once the model is loaded; ends by SIGTERM, and has to end well."""

    def __init__(self, *flags, model=MODEL, max_model_len=4096, device="cpu"):
        self.command = [os.environ["NIBBLE"], "serve", str(model), "--port", "0", "--device", device, "--max-model-len", str(max_model_len),
                        "--max-num-seqs", "8", "--chat-date", DATE, *flags]
        self.log = []
        self.name = Path(model).name

    def __enter__(self):
        self.program = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        for line in self.program.stderr:
            self.log.append(line)
            if found := re.search(r"ready: chat at (http://\S+?:(\d+)),", line):
                self.url, self.port = found[1], int(found[2])
                break
        else:
            raise RuntimeError("nibble serve did not start:\n" + "".join(self.log))
        self.reader = threading.Thread(target=lambda: self.log.extend(self.program.stderr))
        self.reader.start()
        return self

    def __exit__(self, *_):
        self.program.send_signal(signal.SIGTERM)
        status = self.program.wait(timeout=60)
        self.reader.join()
        self.program.stderr.close()
        assert status == 0, f"nibble serve ended with {status}:\n" + "".join(self.log)

    def get(self, path):
        with urllib.request.urlopen(self.url + path) as answer:
            return json.load(answer)

    def memory_bytes(self):
        """What the program has resident."""
        for line in Path(f"/proc/{self.program.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no VmRSS")

    def open_files(self):
        return len(os.listdir(f"/proc/{self.program.pid}/fd"))
