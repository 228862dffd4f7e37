"""Language server: changes in the editor start analyses; requests are answered from the newest one.

The thread that communicates with the editor reads and computes nothing. A change is linted statically at once, and in
full after a moment without typing. Of several waiting analyses only the newest is made.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from declarative_train.app.commands.lint import looks_like_recipe
from declarative_train.tools.language_server.analysis import Analysis, analyse, earlier_diagnostics
from declarative_train.tools.language_server.completion import CompletionName, complete, token_before
from declarative_train.tools.language_server.hover import hover
from declarative_train.tools.language_server.messages import FIX_ALL, Messages
from declarative_train.tools.language_server.places import Places

PAUSE_S = 0.5  # without typing before data and shapes are checked

KINDS = {
    "block": types.CompletionItemKind.Class,
    "column": types.CompletionItemKind.Field,
    "field": types.CompletionItemKind.Field,
    "function": types.CompletionItemKind.Function,
    "param": types.CompletionItemKind.Property,
}

T = TypeVar("T")
Handler = Callable[[Any], Awaitable[object]]


@dataclass(slots=True)
class OpenRecipe:
    """File that is open in the editor. `newest`: its last analysis, perhaps of an earlier text while one is in
    progress. `full`: the last full one. `known`: the last one without an error. `work`: the one in progress.
    `published`: the messages sent, by file."""

    uri: str
    path: str
    text: str
    is_recipe: bool = False
    newest: Analysis | None = None
    full: Analysis | None = None
    known: Analysis | None = None
    work: asyncio.Task[None] | None = None
    published: dict[str, list[types.Diagnostic]] = field(default_factory=dict)


class RecipeServer:
    """Language server. `static`: never check data and shapes, so that torch is never imported."""

    def __init__(self, version: str, *, static: bool = False) -> None:
        self.static = static
        self.was_shut_down = False
        self.recipes: dict[str, OpenRecipe] = {}
        self.quick = ThreadPoolExecutor(1, "static")
        self.slow = ThreadPoolExecutor(1, "full")
        self.server = LanguageServer("dtrain", version, text_document_sync_kind=types.TextDocumentSyncKind.Full)
        kinds = [types.CodeActionKind.QuickFix, FIX_ALL]
        handlers: dict[str, tuple[Handler, object]] = {
            types.TEXT_DOCUMENT_DID_OPEN: (self.open_file, None),
            types.TEXT_DOCUMENT_DID_CHANGE: (self.change_file, None),
            types.TEXT_DOCUMENT_DID_SAVE: (self.save_file, types.SaveOptions(include_text=False)),
            types.TEXT_DOCUMENT_DID_CLOSE: (self.close_file, None),
            types.TEXT_DOCUMENT_CODE_ACTION: (self.actions, types.CodeActionOptions(code_action_kinds=kinds)),
            types.TEXT_DOCUMENT_HOVER: (self.hover_text, None),
            types.TEXT_DOCUMENT_COMPLETION: (
                self.complete_names,
                types.CompletionOptions(trigger_characters=[" ", "."]),
            ),
            types.SHUTDOWN: (self.shut_down, None),
        }
        for name, (handler, options) in handlers.items():
            self.server.feature(name, options)(_function(handler))

    # notifications of the editor

    async def open_file(self, params: types.DidOpenTextDocumentParams) -> None:
        document = params.text_document
        path = to_fs_path(document.uri) or document.uri
        self.recipes[document.uri] = OpenRecipe(document.uri, path, document.text)
        self._start(self.recipes[document.uri], pause_s=0.0)

    async def change_file(self, params: types.DidChangeTextDocumentParams) -> None:
        recipe = self.recipes.get(params.text_document.uri)
        if recipe is not None:
            recipe.text = self.server.workspace.get_text_document(recipe.uri).source
            self._start(recipe, pause_s=PAUSE_S)

    async def save_file(self, params: types.DidSaveTextDocumentParams) -> None:
        """Analyse the saved file again, and all open recipes that depend on it."""
        path = to_fs_path(params.text_document.uri)
        saved = str(Path(path).resolve()) if path else ""
        for recipe in self.recipes.values():
            rests_on = set() if recipe.newest is None else recipe.newest.rests_on
            if recipe.uri == params.text_document.uri or saved in rests_on:
                self._start(recipe, pause_s=0.0)

    async def close_file(self, params: types.DidCloseTextDocumentParams) -> None:
        recipe = self.recipes.pop(params.text_document.uri, None)
        if recipe is not None:
            if recipe.work is not None:
                recipe.work.cancel()
            self._publish(recipe, {})

    async def shut_down(self, _: object) -> None:
        self.was_shut_down = True

    # requests of the editor

    async def actions(self, params: types.CodeActionParams) -> list[types.CodeAction]:
        recipe = self.recipes.get(params.text_document.uri)
        analysis = None if recipe is None else await self._of_this_text(recipe)
        if recipe is None or analysis is None:
            return []
        only = (
            None if params.context.only is None else [str(getattr(kind, "value", kind)) for kind in params.context.only]
        )
        return [*self._messages(recipe, analysis).actions(params.range, only)]

    async def hover_text(self, params: types.HoverParams) -> types.Hover | None:
        recipe = self.recipes.get(params.text_document.uri)
        analysis = None if recipe is None else await self._of_this_text(recipe)
        if analysis is None:
            return None
        places = Places(analysis.path, analysis.text, self.server.workspace.position_codec)
        line, column = places.lines.place(places.offset(params.position))
        found = await self._in(self.quick, lambda: hover(analysis, line, column))
        if found is None:
            return None
        contents = types.MarkupContent(types.MarkupKind.Markdown, found.text)
        return types.Hover(contents, places.range(found.span))

    async def complete_names(self, params: types.CompletionParams) -> types.CompletionList:
        recipe = self.recipes.get(params.text_document.uri)
        if recipe is None or not recipe.is_recipe:
            return types.CompletionList(is_incomplete=False, items=[])
        places = Places(recipe.path, recipe.text, self.server.workspace.position_codec)
        offset = places.offset(params.position)
        typed = token_before(recipe.text, offset)
        span = places.lines.span(offset - len(typed), offset)
        path, text, known = recipe.path, recipe.text, recipe.known
        names = await self._in(self.quick, lambda: complete(path, text, offset, known))
        items = [_item(name, number, places.range(span)) for number, name in enumerate(names)]
        return types.CompletionList(is_incomplete=False, items=items)

    # analyses

    def _start(self, recipe: OpenRecipe, *, pause_s: float) -> None:
        recipe.is_recipe = recipe.is_recipe or looks_like_recipe(recipe.text)
        if recipe.work is not None:
            recipe.work.cancel()
        recipe.work = asyncio.ensure_future(self._analyse(recipe, pause_s)) if recipe.is_recipe else None

    async def _analyse(self, recipe: OpenRecipe, pause_s: float) -> None:
        try:
            static = await self._in(self.quick, lambda: analyse(recipe.path, recipe.text, full=False))
            self._show(recipe, static)
            if self.static or static.loaded.recipe is None:
                return
            await asyncio.sleep(pause_s)
            self._show(recipe, await self._in(self.slow, lambda: analyse(recipe.path, recipe.text, full=True)))
        except asyncio.CancelledError:
            raise
        except FileNotFoundError:  # a data file disappeared meanwhile; the next change starts another analysis
            return
        except Exception:  # a bug of ours: it is logged, and the server continues
            message = types.LogMessageParams(types.MessageType.Error, traceback.format_exc())
            self.server.window_log_message(message)

    def _show(self, recipe: OpenRecipe, analysis: Analysis) -> None:
        if analysis.text != recipe.text or self.recipes.get(recipe.uri) is not recipe:
            return
        kept = earlier_diagnostics(recipe.full, analysis)
        recipe.newest = analysis
        recipe.full = analysis if analysis.is_full else recipe.full
        if analysis.plan is not None or (self.static and analysis.loaded.recipe is not None):
            recipe.known = analysis
        diagnostics = (*analysis.diagnostics, *kept)
        self._publish(recipe, self._messages(recipe, analysis).by_file(diagnostics))

    def _publish(self, recipe: OpenRecipe, found: dict[str, list[types.Diagnostic]]) -> None:
        """Send messages. A base of several open recipes shows the mistakes of all of them."""
        touched = {*recipe.published, *found}
        recipe.published = found
        for uri in touched:
            everything = [*found.get(uri, [])]
            for other in self.recipes.values():
                if other is not recipe:
                    everything += [each for each in other.published.get(uri, []) if each not in everything]
            document = self.server.workspace.text_documents.get(uri)
            version = None if document is None else document.version
            self.server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, everything, version))

    async def _of_this_text(self, recipe: OpenRecipe) -> Analysis | None:
        """Return the analysis of the current text, after waiting for it if it is in progress."""
        if not recipe.is_recipe:
            return None
        if recipe.newest is None or recipe.newest.text != recipe.text:
            path, text = recipe.path, recipe.text
            return await self._in(self.quick, lambda: analyse(path, text, full=False))
        return recipe.newest

    def _messages(self, recipe: OpenRecipe, analysis: Analysis) -> Messages:
        return Messages(recipe.uri, analysis, self.server.workspace.position_codec)

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, work)


def _function(method: Handler) -> Handler:
    """Return a function that calls a method: pygls marks its handlers, and a bound method cannot be marked."""

    async def handler(params: Any) -> object:
        return await method(params)

    return handler


def _item(name: CompletionName, number: int, place: types.Range) -> types.CompletionItem:
    return types.CompletionItem(
        label=name.text,
        kind=KINDS.get(name.kind, types.CompletionItemKind.Variable),
        detail=" ".join(filter(None, (name.kind, name.detail))),
        sort_text=f"{number:04}",
        text_edit=types.TextEdit(place, name.text),
    )
