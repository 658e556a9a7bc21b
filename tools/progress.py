"""One line that says how far something slow has come; it is redrawn in a terminal, and left out in a log."""
import sys
import threading
import time


class Line:
    "`with Line(title) as line: line.say(...)`: in a terminal the line also shows the time, once a second."
    def __init__(self, title: str, stream=None):
        self.title, self.text, self.stream = title, "", stream or sys.stderr
        self.live = self.stream.isatty()
        self.start, self.over = time.monotonic(), threading.Event()
        self.thread = threading.Thread(target=self.tick, daemon=True)

    def __enter__(self) -> "Line":
        if self.live: self.thread.start()
        else: print(f"{self.title} …", file=self.stream, flush=True)
        return self

    def __exit__(self, *_) -> None:
        self.over.set()
        if not self.live: return
        self.thread.join()
        print("\r\x1b[K", end="", file=self.stream, flush=True)

    def say(self, text: str) -> None:
        "What the line shows beside its title."
        self.text = text

    def seconds(self) -> str:
        "The time since the start, as minutes and seconds."
        return "{}:{:02}".format(*divmod(int(time.monotonic() - self.start), 60))

    def tick(self) -> None:
        "Draw the line until it is over; never wider than a narrow terminal, so that it stays one line."
        while not self.over.wait(0.5):
            whole = f"{self.title} · {self.seconds()}" + (f" · {self.text}" if self.text else "")
            print(f"\r\x1b[K{whole[:78]}", end="", file=self.stream, flush=True)
