"""Servers for the tests: the real program, started on a free port and ended in good order.

Environment:
  UNFAZED             the program (default: target/release/unfazed)
  UNFAZED_TEST_MODELS folder with larger models; tests that need one are skipped without it
"""

import json
import os
import pathlib
import queue
import signal
import subprocess
import threading

import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("UNFAZED", str(ROOT / "target" / "release" / "unfazed"))
PATIENCE = 300  # seconds: no test is timed, a hanging one ends


def children(pid):
    """The process ids of a process's children that are engines. A server has others, which render chat templates."""
    if pathlib.Path("/proc/self/task").exists():
        tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
        found = " ".join((task / "children").read_text() for task in tasks)
    else:
        found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(child) for child in found.split() if arguments(child)[1:2] == ["engine"]]


def arguments(pid):
    """A process's command line; nothing if it has ended."""
    if pathlib.Path("/proc/self/task").exists():
        try:
            return pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            return []
    return subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True).stdout.split()


class Server:
    """`unfazed serve` on a free port, watched through its events."""

    def __init__(self, *args, key=None):
        env = {k: v for k, v in os.environ.items() if not k.startswith("UNFAZED_")}
        if key:
            env["UNFAZED_API_KEY"] = key
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--port", "0", *map(str, args)], stdout=subprocess.PIPE, text=True, env=env
        )
        self.events = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.ready = self.event("ready")
        self.url = f"http://127.0.0.1:{self.ready['port']}"
        self.client = openai.OpenAI(
            base_url=self.url + "/v1", api_key=key or "none", max_retries=0, timeout=PATIENCE
        )

    def _read(self):
        for line in self.process.stdout:
            self.events.put(json.loads(line))
        self.events.put(None)

    def event(self, name):
        """The next event of that name."""
        while True:
            event = self.events.get(timeout=PATIENCE)
            assert event is not None, f"the server ended before {name}"
            if event["event"] == name:
                return event

    def metric(self, name):
        """A number of /metrics."""
        text = self.client.get("/../metrics", cast_to=str)
        for line in text.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise AssertionError(f"/metrics has no {name}")

    def engine(self):
        """The engine's process id."""
        [engine] = children(self.process.pid)
        return engine

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=PATIENCE) == 0


@pytest.fixture(scope="session")
def demo():
    """The demo model with defaults."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def start():
    """Starts servers with arguments of the test's own."""
    servers = []

    def begin(*args, **kwargs):
        servers.append(Server(*args, **kwargs))
        return servers[-1]

    yield begin
    for server in servers:
        if server.process.poll() is None:
            server.stop()


@pytest.fixture
def test_model():
    """The path of a larger model, or the test is skipped."""

    def path(name):
        folder = os.environ.get("UNFAZED_TEST_MODELS")
        found = folder and pathlib.Path(folder, name)
        if not found or not found.exists():
            pytest.skip(f"UNFAZED_TEST_MODELS has no {name}")
        return found

    return path


# A tenth of a text of plain English is these words many times over; of noise, never.
COMMON = set(
    "the a an and or but to of in on at it is was were are be been he she they we you i his her their its my your "
    "that this there then when with for from as by so not had has have do did said would could one all day time up out".split()
)


def assert_readable(text):
    """English words, not noise."""
    assert "\ufffd" not in text, text
    words = [word.strip(".,;:!?\"'()").lower() for word in text.split()]
    words = [word for word in words if word]
    assert len(words) >= 10, text
    common = sum(word in COMMON for word in words) / len(words)
    assert common >= 0.25, f"{common:.2f} of the words are common ones: {text}"
    letters = sum(char.isalpha() or char.isspace() for char in text) / len(text)
    assert letters >= 0.8, text
