"""The chat in a terminal, typed into a pseudo-terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest

from conftest import PATIENCE, PROGRAM, children


class Terminal:
    """The program with a pseudo-terminal for everything."""

    def __init__(self, *args):
        self.primary, secondary = pty.openpty()
        env = {k: v for k, v in os.environ.items() if not k.startswith("UNFAZED_")}
        self.process = subprocess.Popen(
            [PROGRAM, *args],
            stdin=secondary,
            stdout=secondary,
            stderr=secondary,
            env=env | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )
        os.close(secondary)
        self.text = ""

    def read_until(self, pattern):
        """Reads until the pattern appears behind what was matched before; returns the text up to its end."""
        start = time.monotonic()
        while True:
            match = re.search(pattern, self.text)
            if match:
                seen, self.text = self.text[: match.end()], self.text[match.end() :]
                return seen
            assert time.monotonic() - start < PATIENCE, f"no {pattern!r} in {self.text!r}"
            if select.select([self.primary], [], [], 1)[0]:
                try:
                    part = os.read(self.primary, 4096).decode(errors="replace")
                except OSError:
                    part = ""
                assert part, f"the program ended before {pattern!r}: {self.text!r}"
                self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", part)

    def type(self, text):
        os.write(self.primary, text.encode())

    def end(self):
        code = self.process.wait(timeout=PATIENCE)
        os.close(self.primary)
        return code


@pytest.fixture
def chat(demo):
    terminal = Terminal("run", "--url", demo.url, "--temperature", "0")
    terminal.read_until(r"/help lists the commands")
    terminal.read_until(r">>> ")
    yield terminal
    if terminal.process.poll() is None:
        terminal.process.kill()
        terminal.process.wait()


def test_answers_are_streamed_with_rates_and_history_until_ctrl_d(chat):
    chat.type("My name is Tom.\r")
    chat.read_until(r"\d+ tokens, [\d.]+ tokens/s . prompt \d+ tokens")
    chat.read_until(r">>> ")
    chat.type("Go on.\r")
    second = chat.read_until(r"prompt \d+ tokens")
    assert int(re.search(r"prompt (\d+)", second).group(1)) > 30, "the first exchange is part of the prompt"
    chat.read_until(r">>> ")
    chat.type("\x04")
    assert chat.end() == 0


def test_commands_are_listed_and_obeyed(chat, tmp_path):
    chat.type("/help\r")
    chat.read_until(r"/save FILE")
    chat.read_until(r">>> ")
    chat.type("/system You are a cook.\r")
    chat.read_until(r"starts anew")
    chat.read_until(r">>> ")
    chat.type(f"/save {tmp_path}/chat.json\r")
    chat.read_until(r"Saved to")
    assert '"You are a cook."' in (tmp_path / "chat.json").read_text()
    chat.read_until(r">>> ")
    chat.type("/clar\r")
    chat.read_until(r"no such command")
    chat.read_until(r">>> ")
    chat.type("/quit\r")
    assert chat.end() == 0


def test_a_message_may_have_several_lines(chat, tmp_path):
    for line in ('"""', "one", "", 'two"""'):
        chat.type(line + "\r")
    chat.read_until(r"tokens/s")
    chat.read_until(r">>> ")
    chat.type("three\\\r")
    chat.read_until(r"\.\.\. ")
    chat.type("four\r")
    chat.read_until(r"tokens/s")
    chat.read_until(r">>> ")
    chat.type(f"/save {tmp_path}/chat.json\r")
    chat.read_until(r"Saved to")
    saved = (tmp_path / "chat.json").read_text()
    assert r'"one\n\ntwo"' in saved and r'"three\nfour"' in saved


def test_ctrl_c_stops_the_answer_and_not_the_program(chat, demo):
    os.kill(demo.engine(), signal.SIGSTOP)
    chat.type("Tell me a very long story.\r")
    # The engine stands still, so the answer cannot have ended before Ctrl-C.
    chat.read_until(r"story\.\r\n")
    chat.type("\x03")
    chat.read_until(r"stopped")
    os.kill(demo.engine(), signal.SIGCONT)
    chat.read_until(r">>> ")
    chat.type("\x03")
    chat.read_until(r"Ctrl-D or /quit ends")
    chat.read_until(r">>> ")
    chat.type("Hello\r")
    chat.read_until(r"tokens/s")
    # A key that is typed before the prompt stands there may be lost between the terminal's two modes.
    chat.read_until(r">>> ")
    chat.type("\x04")
    assert chat.end() == 0


def test_a_chat_with_a_model_of_its_own_loads_it_and_leaves_nothing_behind():
    terminal = Terminal("run", "--max-tokens", "8")
    terminal.read_until(r">>> ")
    terminal.type("Hello\r")
    terminal.read_until(r"8 tokens, [\d.]+ tokens/s")
    terminal.read_until(r">>> ")
    [engine] = children(terminal.process.pid)
    terminal.type("\x04")
    assert terminal.end() == 0
    start = time.monotonic()
    while is_alive(engine):
        assert time.monotonic() - start < PATIENCE, "the engine outlives the chat"
        time.sleep(0.05)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_serving_in_a_terminal_greets_and_ends_with_ctrl_c():
    terminal = Terminal("serve", "--port", "0")
    greeting = terminal.read_until(r"Ctrl-C stops the server")
    assert "curl http://127.0.0.1:" in greeting
    assert '{"event"' not in greeting, "events are for machines"
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0
