"""A worker of a benchmark: a process that answers each request, one line of JSON, by another."""

import json
import os
import select
import subprocess
import time


class WorkerError(RuntimeError):
    """A worker reported an error, ended, or did not answer in time."""


class WorkerProcess:
    """It waits on its standard input while it has nothing to do, so that it disturbs no one else's measurement."""

    def __init__(self, name, command, timeout_s, environment):
        self.name = name
        self.timeout_s = timeout_s
        self.unread = b""
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            env=os.environ | environment)
        except OSError as error:
            raise WorkerError(f"{name}: cannot start {command[0]}: {error.strerror}") from error

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        self.close() if error is None else self.kill()

    def ask(self, **request):
        """The answer to a request. @throws WorkerError: no such answer."""
        text = json.dumps(request)
        try:
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise self._ended(text) from None
        answer = self._read_line(text)
        try:
            answer = json.loads(answer)
        except ValueError:
            raise WorkerError(f"{self.name}: answered {text} with no JSON: {answer!r}") from None
        if "error" in answer:
            raise WorkerError(f"{self.name}: {text} failed: {answer['error']}")
        return answer

    def let_end(self):
        """Asks for nothing more, and does not wait."""
        try:
            self.process.stdin.close()
        except OSError:
            pass  # it has ended already

    def close(self):
        """Lets it end, and makes it end if it does not."""
        self.let_end()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def _read_line(self, request):
        end = time.monotonic() + self.timeout_s
        while b"\n" not in self.unread:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise WorkerError(f"{self.name}: no answer to {request} within {self.timeout_s} s")
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise self._ended(request)
            self.unread += more
        line, self.unread = self.unread.split(b"\n", 1)
        return line.decode()

    def _ended(self, request):
        try:
            status = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            status = "unknown"
        return WorkerError(f"{self.name}: ended with status {status} at {request}")
