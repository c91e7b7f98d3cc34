"""The scaler runs in small containers: it must import little, and fast."""

import json
import subprocess
import sys

PROBE = """
import json, sys, time
started_s = time.perf_counter()
import scaler.app, scaler.registry, scaler.fleets.local, scaler.forecasts
print(json.dumps([time.perf_counter() - started_s, sorted(sys.modules)]))
"""


def test_imports_are_few_and_fast():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=True, text=True)
    seconds, modules = json.loads(done.stdout)
    packages = {module.partition(".")[0] for module in modules}
    assert not packages & {"torch", "numpy", "transformers", "activator", "snapshot", "runtime"}
    assert seconds < 1.0
