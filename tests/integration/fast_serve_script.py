"""`glowplug serve` whose scaler and traffic history live on a FastClock.

    python fast_serve_script.py TICK_S RATE SINCE_S UNIX_S [OPTIONS OF SERVE]

Everything else of the server is as it always is: requests, replicas and their starts take real
time, so on its clocks they take RATE times as long. TICK_S is in real seconds.
"""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # what tests share
import fast_clock

import glowplug.serve
from glowplug.cli.main import main
from scaler.app import Scaler
from scaler.history import TrafficHistory
from scaler.traffic import Traffic

tick_s, *clock_s = map(float, sys.argv[1:5])
clock = fast_clock.FastClock(*clock_s)
parts = {
    "Scaler": partial(Scaler, now=clock.now, wall=clock.wall, tick_s=tick_s),
    "Traffic": partial(Traffic, now_s=clock.wall),
    "TrafficHistory": partial(TrafficHistory, now_s=clock.wall),
}
for name, part in parts.items():
    assert hasattr(glowplug.serve, name)
    setattr(glowplug.serve, name, part)

sys.argv = ["glowplug", "serve", *sys.argv[5:]]
main()
