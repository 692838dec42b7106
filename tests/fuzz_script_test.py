#!/usr/bin/env python3
"""What tools/fuzz.sh makes of how a target ends: one made up for each case."""
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "tools/fuzz.sh"
# (name, the target's exit status, the script's, inputs in the table)
CASES = [
    ("whole", 0, 0, 7),
    ("stopped", 72, 72, 7),  # by SIGINT or SIGTERM: no finding
    ("broken", 77, 1, None),
]


def run(name, status):
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / f"{name}_fuzz"
        target.write_text(f"#!/bin/sh\necho '#7 DONE cov: 3 ft: 4'\necho 'stat::number_of_executed_units: 7'\n"
                          f"exit {status}\n")
        target.chmod(0o755)
        done = subprocess.run([SCRIPT, folder, "1"], cwd=SCRIPT.parent.parent, capture_output=True, text=True)
        rows = (pathlib.Path(folder) / "fuzz.tsv").read_text().splitlines()[1:]
        return done.returncode, int(rows[0].split("\t")[1]) if rows else None


class FuzzScriptTest(unittest.TestCase):
    def test_how_a_target_ends(self):
        for name, status, expected, inputs in CASES:
            with self.subTest(name):
                self.assertEqual(run(name, status), (expected, inputs))


if __name__ == "__main__":
    unittest.main()
