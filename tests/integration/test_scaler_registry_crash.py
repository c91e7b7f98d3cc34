"""kill -9 of a writer of the registry, again and again: nothing acknowledged is lost."""

import asyncio
import random
import sqlite3
import subprocess
import sys
import time

from scaler.registry import SqliteRegistry

WRITER = """
import asyncio, sys
from pathlib import Path
from glowplug.spec import FunctionSpec
from scaler.registry import SqliteRegistry

async def main():
    registry = SqliteRegistry(Path(sys.argv[1]))
    spec = FunctionSpec(name="f", model="m")
    old = {function.spec.name: function for function in await registry.list()}
    number = int(old["f"].spec.idle_s) if old else 0
    while True:
        number += 1
        spec = spec.model_copy(update={"idle_s": float(number % 600_000)})
        await registry.put(spec)
        print(number, flush=True)
        if number % 3 == 0:
            await registry.put(FunctionSpec(name=f"extra-{number % 30}", model="m" * 3000))
        if number % 7 == 0 and f"extra-{number % 30}" in {
            function.spec.name for function in await registry.list()
        }:
            await registry.delete(f"extra-{number % 30}")

asyncio.run(main())
"""


def written(path):
    async def read():
        registry = SqliteRegistry(path)
        try:
            return {function.spec.name: function for function in await registry.list()}
        finally:
            registry.close()

    return asyncio.run(read())


def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path):
    path = tmp_path / "registry.db"
    randomness = random.Random(7)
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        with writer:
            acknowledged = int(writer.stdout.readline())
            time.sleep(randomness.uniform(0.0, 0.15))  # the kill comes at any moment
            writer.kill()
            for line in writer.stdout.read().splitlines():
                acknowledged = int(line)
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
        functions = written(path)
        assert acknowledged <= functions["f"].spec.idle_s <= acknowledged + 1
        assert all(function.failure is None for function in functions.values())
