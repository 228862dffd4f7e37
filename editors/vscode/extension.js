// Starts `dtrain lsp` for YAML files. The server decides which of them are recipes.
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

function command() {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath ?? "";
  const words = vscode.workspace.getConfiguration("dtrain").get("command", ["dtrain"]);
  return words.map((word) => word.replace("${workspaceFolder}", folder));
}

async function start() {
  const [program, ...words] = command();
  const isStatic = vscode.workspace.getConfiguration("dtrain").get("static", false);
  const server = { command: program, args: [...words, "lsp", ...(isStatic ? ["--static"] : [])] };
  const options = { documentSelector: [{ scheme: "file", language: "yaml" }] };
  client = new LanguageClient("dtrain", "dtrain", server, options);
  try {
    await client.start();
  } catch (error) {
    const help = "install it with: pip install 'declarative_train[lsp]', or set dtrain.command";
    vscode.window.showErrorMessage(`dtrain does not start (${program}): ${error.message ?? error}; ${help}`);
  }
}

async function restart() {
  await client?.stop().catch(() => undefined);
  await start();
}

function showPlan() {
  const file = vscode.window.activeTextEditor?.document.uri.fsPath;
  if (file === undefined) return;
  const [program, ...words] = command();
  const task = new vscode.Task(
    { type: "dtrain" }, vscode.TaskScope.Workspace, "plan", "dtrain",
    new vscode.ProcessExecution(program, [...words, "plan", file]),
  );
  vscode.tasks.executeTask(task);
}

async function activate(context) {
  context.subscriptions.push(
    vscode.commands.registerCommand("dtrain.restart", restart),
    vscode.commands.registerCommand("dtrain.plan", showPlan),
    vscode.workspace.onDidChangeConfiguration((event) => {
      if (event.affectsConfiguration("dtrain")) restart();
    }),
  );
  await start();
}

async function deactivate() {
  await client?.stop();
}

module.exports = { activate, deactivate };
