"""A language server as a child process, spoken to in the language server protocol over its standard streams.

Small on purpose: requests wait for their answer, notifications are kept by method, and what the server asks of the
editor is answered from `settings`. A server that says nothing for `TIMEOUT` seconds fails the test with what it wrote
to standard error.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TIMEOUT = 60.0


class LspClient:
    """`with LspClient(command, root) as client:` starts, initialises and at the end shuts the server down."""

    def __init__(
        self,
        command: Sequence[str],
        root: Path,
        *,
        settings: dict[str, Any] | None = None,
        cwd: Path | None = None,
        encodings: Sequence[str] = ("utf-16",),
        progress: bool = False,
    ) -> None:
        self.settings = settings or {}
        self.diagnostics: dict[str, list[Any]] = {}
        self.notifications: list[dict[str, Any]] = []
        self.exit_code: int | None = None
        self._versions: dict[str, int] = {}
        self._number = 0
        self._inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd or root
        )
        self.pid = self._process.pid
        self._stderr = bytearray()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read, self._drain)]
        for thread in self._threads:
            thread.start()
        capabilities = {
            "general": {"positionEncodings": list(encodings)},
            "window": {"workDoneProgress": progress},
            "workspace": {"configuration": True, "workspaceFolders": True},
            "textDocument": {
                "publishDiagnostics": {"versionSupport": True, "relatedInformation": True},
                "hover": {"contentFormat": ["markdown", "plaintext"]},
                "completion": {"completionItem": {"snippetSupport": True, "documentationFormat": ["markdown"]}},
                "codeAction": {"codeActionLiteralSupport": {"codeActionKind": {"valueSet": ["quickfix"]}}},
            },
        }
        folder = {"uri": root.as_uri(), "name": root.name}
        params = {"processId": None, "rootUri": root.as_uri(), "workspaceFolders": [folder]}
        self.server = self.ask("initialize", {**params, "capabilities": capabilities})
        self.tell("initialized", {})
        self.tell("workspace/didChangeConfiguration", {"settings": self.settings})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._process.poll() is None:
                self.ask("shutdown", None)
                self.tell("exit", None)
                self.exit_code = self._process.wait(timeout=TIMEOUT)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            for thread in self._threads:
                thread.join(timeout=5)
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()

    # what an editor does

    def open(self, path: Path, text: str | None = None) -> str:
        """Open a file in the editor, with another text than the disk's if one is given. Its address."""
        uri = path.as_uri()
        self._versions[uri] = self._versions.get(uri, 0) + 1
        self.diagnostics.pop(uri, None)
        content = path.read_text("utf-8") if text is None else text
        document = {"uri": uri, "languageId": "yaml", "version": self._versions[uri], "text": content}
        self.tell("textDocument/didOpen", {"textDocument": document})
        return uri

    def change(self, uri: str, text: str) -> None:
        """Replace the whole text."""
        self._versions[uri] += 1
        self.diagnostics.pop(uri, None)
        document = {"uri": uri, "version": self._versions[uri]}
        self.tell("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})

    def save(self, uri: str) -> None:
        self.diagnostics.pop(uri, None)
        self.tell("textDocument/didSave", {"textDocument": {"uri": uri}})

    def close(self, uri: str) -> None:
        self.tell("textDocument/didClose", {"textDocument": {"uri": uri}})

    def at(self, method: str, uri: str, line: int, character: int, **more: Any) -> Any:
        """A request about a place; line and character count from 0, as in the protocol."""
        place = {"line": line, "character": character}
        return self.ask(f"textDocument/{method}", {"textDocument": {"uri": uri}, "position": place, **more})

    def completions(self, uri: str, line: int, character: int) -> dict[str, Any]:
        """The offered items by their label."""
        found = self.at("completion", uri, line, character) or []
        items = found["items"] if isinstance(found, dict) else found
        return {item["label"]: item for item in items}

    def hover(self, uri: str, line: int, character: int) -> str:
        found = self.at("hover", uri, line, character)
        contents = found["contents"] if found else ""
        return contents["value"] if isinstance(contents, dict) else str(contents)

    def code_actions(self, uri: str, diagnostic: dict[str, Any]) -> list[dict[str, Any]]:
        params = {"textDocument": {"uri": uri}, "range": diagnostic["range"], "context": {"diagnostics": [diagnostic]}}
        return self.ask("textDocument/codeAction", params) or []

    def wait_for_diagnostics(
        self, uri: str, accept: Callable[[list[Any]], bool] = lambda found: True, timeout: float = TIMEOUT
    ) -> list[Any]:
        """The next diagnostics of this file that `accept` takes."""
        end = time.monotonic() + timeout
        while uri not in self.diagnostics or not accept(self.diagnostics[uri]):
            self._take(end, f"diagnostics of {uri}; the last were {self.diagnostics.get(uri)}")
        return self.diagnostics[uri]

    # the protocol

    def ask(self, method: str, params: Any, timeout: float = TIMEOUT) -> Any:
        """Send a request and wait for its answer."""
        self._number += 1
        number = self._number
        self._send({"id": number, "method": method, "params": params})
        end = time.monotonic() + timeout
        while True:
            message = self._take(end, f"the answer to {method}")
            if message.get("id") == number and "method" not in message:
                assert "error" not in message, f"{method}: {message['error']}"
                return message.get("result")

    def tell(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def _take(self, end: float, waited_for: str) -> dict[str, Any]:
        """The next message; diagnostics are filed and the server's own questions answered."""
        try:
            message = self._inbox.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"waited in vain for {waited_for}; {self._last_words()}") from None
        if message is None:
            raise AssertionError(f"the server left before {waited_for}; {self._last_words()}")
        method = message.get("method")
        if method == "textDocument/publishDiagnostics":
            version = message["params"].get("version")
            uri = message["params"]["uri"]
            if version is None or version >= self._versions.get(uri, 0):
                self.diagnostics[uri] = message["params"]["diagnostics"]
        elif method is not None and "id" in message:
            self._send({"id": message["id"], "result": self._answer(method, message.get("params"))})
        elif method is not None:
            self.notifications.append(message)
        return message

    def _answer(self, method: str, params: Any) -> Any:
        if method != "workspace/configuration":
            return None
        return [self.settings.get(item.get("section"), {}) for item in params["items"]]

    def _last_words(self) -> str:
        said = "".join(f"\n{each['params']}" for each in self.notifications[-3:])
        return f"it wrote: {bytes(self._stderr[-2000:]).decode(errors='replace') or 'nothing'}{said}"

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while header := stream.readline():
            length = 0
            while header.strip():
                name, _, value = header.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
                header = stream.readline()
            if length:
                self._inbox.put(json.loads(stream.read(length)))
        self._inbox.put(None)

    def _drain(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._stderr += line
