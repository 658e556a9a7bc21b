"""Serve a built book on localhost with gzip, as a static host does: python tools/serve.py
[FOLDER] [PORT]"""
import gzip
import http.server
import re
import sys
from functools import lru_cache, partial
from pathlib import Path

PACKED = {".html", ".css", ".js", ".json", ".svg", ".txt", ".xml", ".map", ".wasm"}


@lru_cache(maxsize=512)
def packed(path: Path, _stamp: int) -> bytes:
    "The file's bytes, gzipped; the stamp makes a changed file a new entry."
    return gzip.compress(path.read_bytes(), 6)


class Handler(http.server.SimpleHTTPRequestHandler):
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map,
                      ".js": "text/javascript", ".woff2": "font/woff2", ".wasm": "application/wasm"}
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        path = (path / "index.html" if path.is_dir()
                and self.path.split("?")[0].endswith("/") else path)
        if not path.exists() and (lost := Path(self.directory) / "404.html").is_file():
            return self.lost(lost)
        if (path.suffix not in PACKED or not path.is_file()
            or "gzip" not in self.headers.get("Accept-Encoding", "")):
            return super().do_GET()
        body = packed(path, path.stat().st_mtime_ns)
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Vary", "Accept-Encoding")
        self.end_headers()
        self.wfile.write(body)

    def lost(self, page: Path):
        "The book's own page for an unknown address, its links counted from the root."
        body = re.sub(r'\b(href|src|action)="(?!https?:|data:|#|/)', r'\1="/',
                      page.read_text(encoding="utf-8")).encode()
        self.send_response(404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self):
        self.send_header("Cache-Control", "max-age=600")
        super().end_headers()

    def log_message(self, *_):
        pass


def server(folder: Path, port: int = 0) -> http.server.ThreadingHTTPServer:
    "A server for `folder`, bound to localhost; port 0 takes any free one."
    return http.server.ThreadingHTTPServer(("127.0.0.1", port),
                                           partial(Handler, directory=str(folder)))


def main(folder: str = "_build/html", port: str = "8000") -> None:
    if not (Path(folder) / "index.html").is_file():
        sys.exit(f"no built book in {folder}: run `make book`")
    try:
        httpd = server(Path(folder), int(port))
    except OSError:                                       # the port is taken: any other will do
        httpd = server(Path(folder))
    print(f"The book is at http://localhost:{httpd.server_port}/  (Ctrl-C ends it)", flush=True)
    try:
        httpd.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
