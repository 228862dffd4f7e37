"""The VS Code extension: it starts `dtrain lsp`, and packs."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "editors" / "vscode"

ACTIVATE = """
const Module = require("module");
const made = [], commands = {};
const vscode = {
  workspace: {
    workspaceFolders: [{ uri: { fsPath: "/project" } }],
    getConfiguration: () => ({ get: (key) => ({ command: ["${workspaceFolder}/bin/dtrain"], static: true })[key] }),
    onDidChangeConfiguration: () => ({}),
  },
  commands: { registerCommand: (name, call) => { commands[name] = call; return {}; } },
  window: { showErrorMessage: (message) => made.push({ message }) },
};
class LanguageClient {
  constructor(id, name, server, options) { this.made = { server, options }; made.push(this.made); }
  async start() { if (made.length > 1) throw new Error("not found"); }
  async stop() {}
}
const load = Module._load;
Module._load = (name, ...rest) =>
  name === "vscode" ? vscode : name === "vscode-languageclient/node" ? { LanguageClient } : load(name, ...rest);
const extension = require(process.argv[2]);
(async () => {
  await extension.activate({ subscriptions: [] });
  await commands["dtrain.restart"]();
  console.log(JSON.stringify({ made, commands: Object.keys(commands) }));
})();
"""


def test_it_starts_the_server_and_says_when_it_cannot(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not on this machine")
    script = tmp_path / "activate.js"
    script.write_text(ACTIVATE)
    done = subprocess.run(
        [node, str(script), str(FOLDER / "extension.js")], capture_output=True, text=True, timeout=60, check=True
    )
    found = json.loads(done.stdout)
    first, _, failed = found["made"]
    assert first["server"] == {"command": "/project/bin/dtrain", "args": ["lsp", "--static"]}
    assert first["options"]["documentSelector"] == [{"scheme": "file", "language": "yaml"}]
    assert "declarative_train[lsp]" in failed["message"]
    package = json.loads((FOLDER / "package.json").read_text())
    assert found["commands"] == [each["command"] for each in package["contributes"]["commands"]]


@pytest.mark.long
@pytest.mark.timeout(700)
def test_it_packs(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not on this machine: the extension cannot be packed")
    folder = shutil.copytree(FOLDER, tmp_path / "vscode", ignore=shutil.ignore_patterns("node_modules"))
    for words in (["ci", "--ignore-scripts", "--no-audit", "--no-fund"], ["run", "package"]):
        done = subprocess.run([npm, *words], cwd=folder, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
    (packed,) = folder.glob("*.vsix")
    names = set(zipfile.ZipFile(packed).namelist())
    assert {"extension/extension.js", "extension/package.json"} <= names
    assert any(name.startswith("extension/node_modules/vscode-languageclient/lib/") for name in names)
