"""A local HTTP server that answers as the Hugging Face hub does to an upload."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "hf_local_test_token"


class HubServer(ThreadingHTTPServer):
    """Keeps repositories in memory.

    Attributes:
        repositories: Files of each repository, by path: their bytes.
        is_private: Whether a repository was created as a private one.
        commits: Messages of all commits.
        refuses_commits: Whether commits are answered with status 403.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.is_private: dict[str, bool] = {}
        self.commits: list[str] = []
        self.objects: dict[str, bytes] = {}
        self.refuses_commits = False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, *args):
        """Print nothing."""

    def _reply(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _is_allowed(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return True
        self._reply({"error": "Invalid username or password."}, 401)
        return False

    def do_GET(self):
        """Answer who the owner of the token is."""
        if self.path == "/api/whoami-v2":
            if self._is_allowed():
                self._reply({"name": "someone", "type": "user", "orgs": []})
        else:
            self._reply({"error": "Not found"}, 404)

    def do_PUT(self):
        """Store an object of the large file storage."""
        data = self._body()
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(data).hexdigest() == oid
        self.server.objects[oid] = data
        self._reply({})

    def do_POST(self):
        """Create repositories, plan uploads, accept commits."""
        body = self._body()
        if self.path == "/api/validate-yaml":
            self._reply({"errors": [], "warnings": []})
        elif not self._is_allowed():
            return
        elif self.path == "/api/repos/create":
            self._create(json.loads(body))
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            modes = [
                {
                    "path": f["path"],
                    "uploadMode": "lfs" if f["path"].endswith("tensors") else "regular",
                    "shouldIgnore": False,
                }
                for f in files
            ]
            self._reply({"files": modes})
        elif self.path.endswith("/objects/batch"):
            self._plan(json.loads(body)["objects"])
        elif "/commit/" in self.path:
            self._commit(self.path.split("/api/models/")[1].split("/commit/")[0], body)
        else:
            self._reply({"error": "Not found"}, 404)

    def _create(self, asked):
        name = f"{asked.get('organization') or 'someone'}/{asked['name']}"
        url = f"{self.server.url}/{name}"
        if name in self.server.repositories:
            self._reply(
                {"error": "You already created this model repo", "url": url}, 409
            )
            return
        self.server.repositories[name] = {}
        private = asked.get("private") or asked.get("visibility") == "private"
        self.server.is_private[name] = bool(private)
        self._reply({"url": url, "name": name, "id": name})

    def _plan(self, objects):
        self._reply(
            {
                "transfer": "basic",
                "objects": [
                    {
                        **each,
                        "actions": {
                            "upload": {"href": f"{self.server.url}/lfs/{each['oid']}"}
                        },
                    }
                    for each in objects
                ],
            }
        )

    def _commit(self, name, body):
        if self.server.refuses_commits:
            self._reply({"error": "You have no write access."}, 403)
            return
        files = self.server.repositories[name]
        for line in body.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                self.server.commits.append(value["summary"])
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
        oid = f"{len(self.server.commits):040x}"
        url = f"{self.server.url}/{name}/commit/{oid}"
        self._reply({"commitUrl": url, "commitOid": oid})
