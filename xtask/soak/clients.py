"""Clients of `cargo xtask soak` that use the OpenAI package: jobs come on standard input, what it got goes to standard output.

A job is a JSON object a line: number, path ("/v1/chat/completions" or "/v1/completions"), body, and leave_after: so many
chunks, after which the client leaves the stream, or null. Answers are JSON objects a line, each with the job's number and one
of: chunk or whole (what the package made of the server's JSON), left, end (the iteration ended), error (what it raised).

usage: clients.py PORT CLIENTS
"""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import openai

# What the package's functions take by name; the rest are the server's own fields.
KNOWN = set(
    "model messages prompt n stop seed temperature top_p max_tokens logprobs top_logprobs presence_penalty "
    "frequency_penalty echo stream stream_options".split()
)
PATIENCE = 600  # seconds: a server that loses a request must not end in a client that waits for ever
output = threading.Lock()


def tell(number, **what):
    line = json.dumps({"number": number, **what})
    with output:
        print(line, flush=True)


def create(client, path, body):
    """The package's call for a body."""
    api = client.chat.completions if path.endswith("/chat/completions") else client.completions
    fields = {name: value for name, value in body.items() if name in KNOWN}
    further = {name: value for name, value in body.items() if name not in KNOWN}
    return api.create(**fields, extra_body=further)


def follow(number, stream, leave_after):
    """Tells each chunk, and leaves after so many."""
    if leave_after == 0:
        stream.close()
        return tell(number, left=True)
    for count, chunk in enumerate(stream, 1):
        tell(number, chunk=chunk.to_dict(mode="json"))
        if count == leave_after:
            stream.close()
            return tell(number, left=True)
    tell(number, end=True)


def work(client, job):
    number, body = job["number"], job["body"]
    try:
        answer = create(client, job["path"], body)
        if body.get("stream"):
            follow(number, answer, job["leave_after"])
        else:
            tell(number, whole=answer.to_dict(mode="json"))
    except Exception as error:  # whatever it is, it is the checker's to judge
        tell(number, error=f"{type(error).__name__}: {error}")


def main():
    port, clients = int(sys.argv[1]), int(sys.argv[2])
    client = openai.OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=PATIENCE
    )
    with ThreadPoolExecutor(clients) as threads:
        for line in sys.stdin:
            threads.submit(work, client, json.loads(line))


main()
