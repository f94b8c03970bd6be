"""A local HTTP server that answers as the hub does to readers of a dataset."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

NAME = "me/sums"
SHA = "a" * 40


class DatasetHub(ThreadingHTTPServer):
    """Serves the files of the dataset ``me/sums``.

    Attributes:
        files: Bytes by path.
        requests: Methods and paths of all requests.
    """

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = files
        self.requests: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        """Address of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: DatasetHub

    def log_message(self, *args):
        """Print nothing."""

    def _reply(self, data, headers=None, status=200):
        if not isinstance(data, bytes):
            data = json.dumps(data).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _missing(self, code):
        self._reply({"error": code}, {"X-Error-Code": code}, 404)

    def do_GET(self):
        """Answer every method."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        self.server.requests.append(f"{self.command} {path}")
        api, resolve = f"/api/datasets/{NAME}", f"/datasets/{NAME}/resolve/"
        if path.startswith(resolve):
            self._file(*path.removeprefix(resolve).split("/", 1))
        elif not (path + "/").startswith(api + "/"):
            self._missing("RepoNotFound")
        else:
            self._api(path.removeprefix(api).strip("/").split("/"), body)

    do_HEAD = do_POST = do_GET

    def _file(self, revision, name):
        if revision not in (SHA, "main"):
            self._missing("RevisionNotFound")
        elif name not in self.server.files:
            self._missing("EntryNotFound")
        else:
            data = self.server.files[name]
            etag = hashlib.sha256(data).hexdigest()
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": SHA}
            self._reply(data, headers)

    def _api(self, parts, body):
        kind, revision, *rest = [*parts, "", ""][: max(len(parts), 2)]
        if revision not in (SHA, "main", ""):
            self._missing("RevisionNotFound")
        elif kind == "tree":
            self._reply(self._entries("/".join(rest)))
        elif kind == "paths-info":
            text = body.decode()
            asked = (
                json.loads(text)["paths"]
                if text.startswith("{")
                else parse_qs(text)["paths"]
            )
            every = self._entries("")
            self._reply([entry for entry in every if entry["path"] in asked])
        else:
            files = [{"rfilename": name} for name in self.server.files]
            info = {"id": NAME, "sha": SHA, "private": False, "siblings": files}
            self._reply(info)

    def _entries(self, folder):
        return [
            {
                "type": "file",
                "path": name,
                "size": len(data),
                "oid": hashlib.sha1(data).hexdigest(),
            }
            for name, data in self.server.files.items()
            if name.startswith(folder)
        ]
