"""Language server: changes in the editor start analyses. Requests are answered from the newest analysis.

The thread that communicates with the editor does not read files or compute. After a change, the recipe is checked
statically at once, and fully when the user has not typed for a moment. If several analyses wait, only the newest is
run."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from declarative_train.app.commands.lint import looks_like_recipe
from declarative_train.core.span import Span
from declarative_train.tools.language_server.analysis import Analysis, analyse, earlier_diagnostics, try_fixes
from declarative_train.tools.language_server.completion import CompletionName, complete, token_before
from declarative_train.tools.language_server.hover import Hover, hover, hover_word
from declarative_train.tools.language_server.messages import FIX_ALL, Messages, NamesAt, make_symbol
from declarative_train.tools.language_server.places import Places, holds
from declarative_train.tools.language_server.symbols import earlier_line, find_occurrences, outline

PAUSE_S = 0.5  # without typing before data and shapes are checked

KINDS = {
    "block": types.CompletionItemKind.Class,
    "column": types.CompletionItemKind.Field,
    "field": types.CompletionItemKind.Field,
    "function": types.CompletionItemKind.Function,
    "param": types.CompletionItemKind.Property,
}

T = TypeVar("T")
AtPlace: TypeAlias = types.DefinitionParams | types.ReferenceParams | types.PrepareRenameParams | types.RenameParams
Handler = Callable[[Any], Awaitable[object]]


@dataclass(slots=True)
class OpenRecipe:
    """File that is open in the editor, with its text.

    newest     its last finished analysis; the text may have changed since then
    full       its last analysis that also checked data and shapes
    known      its last analysis without an error
    work       the analysis that is running, or None
    published  messages that the editor shows now, by the address of their file
    """

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
    """Language server. `static`: data and shapes are never checked, so that torch is never imported."""

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
            types.TEXT_DOCUMENT_DEFINITION: (self.find_definition, None),
            types.TEXT_DOCUMENT_REFERENCES: (self.find_references, None),
            types.TEXT_DOCUMENT_PREPARE_RENAME: (self.prepare_rename, None),
            types.TEXT_DOCUMENT_RENAME: (self.rename, types.RenameOptions(prepare_provider=True)),
            types.TEXT_DOCUMENT_DOCUMENT_SYMBOL: (self.list_symbols, None),
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
        lines = range(params.range.start.line + 1, params.range.end.line + 2)
        newest = analysis
        analysis = await self._in(self.quick, lambda: try_fixes(newest, lines))
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
        known = recipe.known if recipe is not None else None
        if analysis.loaded.recipe is None and known is not None:
            found = await self._in(self.quick, lambda: _hover_earlier(known, analysis.text, line, column))
        if found is None:
            found = await self._in(self.quick, lambda: hover_word(analysis.path, analysis.text, line, column))
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

    async def find_definition(self, params: types.DefinitionParams) -> list[types.Location]:
        names = await self._names(params)
        return [] if names is None else names.locations(definitions=True, uses=False)

    async def find_references(self, params: types.ReferenceParams) -> list[types.Location]:
        names = await self._names(params)
        return [] if names is None else names.locations(definitions=params.context.include_declaration, uses=True)

    async def prepare_rename(self, params: types.PrepareRenameParams) -> types.Range | None:
        names = await self._names(params)
        return None if names is None else names.range

    async def rename(self, params: types.RenameParams) -> types.WorkspaceEdit | None:
        names = await self._names(params)
        if names is None:
            return None
        try:
            return names.rename(params.new_name)
        except ValueError as error:
            raise JsonRpcInvalidParams(str(error)) from None

    async def list_symbols(self, params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        recipe = self.recipes.get(params.text_document.uri)
        analysis = None if recipe is None else await self._of_this_text(recipe)
        if recipe is None or analysis is None or analysis.document is None:
            return []
        messages, root = self._messages(recipe, analysis), analysis.document.root
        return [make_symbol(messages, entry) for entry in outline(root, analysis.path)]

    async def _names(self, params: AtPlace) -> NamesAt | None:
        """Return the symbol at a position, or None if there is none."""
        recipe = self.recipes.get(params.text_document.uri)
        analysis = None if recipe is None else await self._of_this_text(recipe)
        if recipe is None or analysis is None or analysis.document is None:
            return None
        places = Places(analysis.path, analysis.text, self.server.workspace.position_codec)
        line, column = places.lines.place(places.offset(params.position))
        root, texts = analysis.document.root, analysis.texts
        found = await self._in(self.quick, lambda: find_occurrences(root, texts))
        here = (each for each in found if each.span.path == analysis.path and holds(each.span, line, column))
        one = next(here, None)
        if one is None:
            return None
        return NamesAt(
            self._messages(recipe, analysis), one, [each for each in found if each.symbol == one.symbol], found
        )

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
            async with self._progress(f"checking {Path(recipe.path).name}: data and shapes"):
                self._show(recipe, await self._in(self.slow, lambda: analyse(recipe.path, recipe.text, full=True)))
        except asyncio.CancelledError:
            raise
        except FileNotFoundError:  # a data file disappeared meanwhile; the next change starts another analysis
            return
        except Exception:  # a bug of ours: it is logged, and the server continues
            message = types.LogMessageParams(types.MessageType.Error, traceback.format_exc())
            self.server.window_log_message(message)

    @asynccontextmanager
    async def _progress(self, title: str) -> AsyncIterator[None]:
        """Show progress with a title in the editor within the `with` block, if the editor supports it."""
        window = self.server.client_capabilities.window
        if window is None or not window.work_done_progress:
            yield
            return
        token, progress = str(uuid4()), self.server.work_done_progress
        await progress.create_async(token)
        progress.begin(token, types.WorkDoneProgressBegin(title=title))
        try:
            yield
        finally:
            progress.end(token, types.WorkDoneProgressEnd())

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
        """Send the messages of a recipe to the editor. A file that several open recipes extend gets the messages of all
        of them. `found`: {address of a file: its messages}."""
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
        """Return an analysis of the current text, or None if the file is not a recipe. If the newest analysis is of an
        older text, a static analysis is made."""
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
    """Return a function that calls `method`. pygls sets attributes on its handlers, and a bound method does not allow
    this."""

    async def handler(params: Any) -> object:
        return await method(params)

    return handler


def _hover_earlier(known: Analysis, text: str, line: int, column: int) -> Hover | None:
    """Return the hover text that an earlier analysis (`known`) has for a line of `text`. Return None if the line has
    changed since then."""
    earlier = earlier_line(text, line, known.text)
    found = None if earlier is None else hover(known, earlier, column)
    if found is None or earlier is None:
        return None
    path, first, start, last, end = found.span
    moved = line - earlier
    return Hover(f"{found.text}\n\n(before the present error)", Span(path, first + moved, start, last + moved, end))


def _item(name: CompletionName, number: int, place: types.Range) -> types.CompletionItem:
    return types.CompletionItem(
        label=name.text,
        kind=KINDS.get(name.kind, types.CompletionItemKind.Variable),
        detail=" ".join(filter(None, (name.kind, name.detail))),
        sort_text=f"{number:04}",
        text_edit=types.TextEdit(place, name.text),
    )
