#!/usr/bin/env python3
"""Which preset `make serve` picks, for machines that are not there: a driver folder and an
nvidia-smi made up for each case."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "tools/pick_preset.sh"
# (GPU listed by the driver, what nvidia-smi says or None where it is missing, preset)
CASES = [
    (False, None, "cpu"),
    (False, "9.0", "cpu"),  # the tools are installed, but there is no GPU
    (True, "12.1", "spark"),
    (True, "9.0\n9.0", "h200"),
    (True, "8.6", "cpu"),
    (True, None, "cpu"),
]


def pick(has_gpu, capability):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        if has_gpu:
            gpu = root / "nvidia/gpus/0000:01:00.0"
            gpu.mkdir(parents=True)
            (gpu / "information").write_text("Model: NVIDIA\n")
        tools = root / "bin"
        tools.mkdir()
        for name in ["bash", "env", "ls", "head"]:
            (tools / name).symlink_to(subprocess.check_output(["which", name], text=True).strip())
        if capability is not None:
            smi = tools / "nvidia-smi"
            smi.write_text(f"#!/usr/bin/env bash\necho '{capability}'\n")
            smi.chmod(0o755)
        return subprocess.run([SCRIPT], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              env={"PATH": str(tools), "NVIDIA_PROC": str(root / "nvidia")},
                              check=True).stdout.strip()


class PickPresetTest(unittest.TestCase):
    def test_machines(self):
        for has_gpu, capability, preset in CASES:
            with self.subTest(has_gpu=has_gpu, capability=capability):
                self.assertEqual(pick(has_gpu, capability), preset)


if __name__ == "__main__":
    unittest.main()
