"""Objects for tests of other processes."""

from __future__ import annotations

import os
import subprocess
import time


class Sleeper:
    """Adds, sleeps, fails or ends its process."""

    def __init__(self, number):
        self.number = number

    def add(self, more):
        return self.number + more

    def where(self):
        return os.environ["SLEEPER"]

    def sleep(self, seconds):
        time.sleep(seconds)

    def fail(self):
        raise KeyError("no such")

    def exit(self):
        os._exit(self.number)

    def start_children(self):
        return [subprocess.Popen(["sleep", "600"]).pid for _ in range(2)]

    def close(self):
        pass
