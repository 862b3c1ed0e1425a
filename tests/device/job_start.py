#!/usr/bin/env python3
"""A job that starts: how long until the driver is ready, its context made, its first kernel done.

Prints one JSON line with wall seconds of each and when it began (seconds since 1970), then ends.
Usage: job_start.py GPU-UUID
"""

from __future__ import annotations

import ctypes as c
import json
import sys
import time

from cuda_driver import Device, Driver
from kernels import PROBE, PROBE_STAMPS


def main(uuid: str) -> None:
    began, unix = time.monotonic(), time.time()
    driver = Driver()
    ready = time.monotonic()
    device = Device(driver, driver.ordinal(uuid))
    context = time.monotonic()
    function = device.function(PROBE, "probe")
    stamps = device.alloc(8 * PROBE_STAMPS)
    stream = device.stream()
    loaded = time.monotonic()
    device.launch(function, 1, 32, stream, c.c_uint64(stamps.value))
    device.finish()
    done = time.monotonic()
    print(json.dumps({"unix": unix, "init": ready - began, "context": context - ready, "load": loaded - context,
                      "kernel": done - loaded, "total": done - began}))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
