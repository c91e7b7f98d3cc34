"""kill -9 of the writer of the traffic history, again and again, while its reporter lives on."""

import asyncio
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from scaler.minutes import Minute
from scaler.traffic import Traffic

# The reporter is the test: it says how much it had counted when the writer began.
WRITER = """
import asyncio, sys
from pathlib import Path
from glowplug.contracts import DemandReport
from scaler.traffic import Traffic

async def main():
    history, arrivals = Traffic(Path(sys.argv[1])), int(sys.argv[2])
    while True:
        for number in range(5):
            arrivals += 1
            history.record(
                DemandReport(
                    function=f"f{arrivals % 3}", reporter=f"r{arrivals % 3}", sequence=arrivals,
                    in_flight=1, queued=0, oldest_wait_s=0.0, arrivals=arrivals // 3,
                    finished=arrivals // 3, service_s=0.5 * (arrivals // 3), peak=1,
                    last_active_s=0.0,
                ),
                1,
            )
            print(f"counted {arrivals}\\n", end="", flush=True)  # at once: the kill cuts no line
        await history.flush()
        print(f"written {arrivals}\\n", end="", flush=True)

asyncio.run(main())
"""


def read(path: Path) -> dict[str, list[Minute]]:
    async def main() -> dict[str, list[Minute]]:
        history = Traffic(path)
        found = {f"f{n}": list(await history.read(f"f{n}", 0, 1 << 40)) for n in range(3)}
        await history.stop()
        return found

    return asyncio.run(main())


def test_a_killed_scaler_counts_nothing_twice_and_nothing_lost(tmp_path: Path) -> None:
    path = tmp_path / "traffic.sqlite"
    randomness = random.Random(11)
    counted = 0
    for _ in range(6):
        command = [sys.executable, "-c", WRITER, str(path), str(counted)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(6)]  # the first is written
            time.sleep(randomness.uniform(0.0, 0.1))  # the kill comes at any moment
            writer.kill()
            lines += writer.stdout.read().splitlines()
        written = 0
        for line in lines:
            what, number = line.split()
            if what == "written":
                written = int(number)
            else:
                counted = int(number)
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            counters = dict(connection.execute("SELECT reporter, arrivals FROM counters"))
        minutes = read(path)
        for number in range(3):
            total = sum(each.arrivals for each in minutes[f"f{number}"])
            assert total == counters[f"r{number}"]
            # The reporter may have counted one more than it had said when it was killed.
            assert written // 3 - 1 <= total <= counted // 3 + 1
            assert sum(each.service_s for each in minutes[f"f{number}"]) == 0.5 * total
            assert {each.peak for each in minutes[f"f{number}"]} == {1}
