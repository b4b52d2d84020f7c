"""What is done over and over never mixes devices, and never waits for one: see ``accelerator``, which needs no GPU."""

import os
import subprocess
import sys
from pathlib import Path


def test_nothing_mixes_devices_or_waits_for_one():
    script = Path(__file__).with_name("accelerator.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    wrong = [line for line in ended.stdout.splitlines() if ": Traceback" in line]
    assert [line.partition(": Traceback")[0] for line in wrong] == [
        "a mistake: a number made on the CPU", "a mistake: a value is read",
    ], ended.stdout  # fmt: skip
    assert ended.stdout.count(": fine\n") > 30
