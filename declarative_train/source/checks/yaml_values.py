"""Messages on the content of YAML documents.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, Related, error, warning
from declarative_train.core.diagnostics.suggest import did_you_mean, suggest_fix
from declarative_train.core.span import Span


def empty_value(key: Span, name: str, following: tuple[str, Span] | None, *, flow: bool) -> Diagnostic:
    """empty-value (Y009)

    Finds: a key, list item or `--set` without a value, often because the lines meant to be inside it are not indented;
           or a value inside `[ ]` or `{ }` that is split at its commas, such as `0,001` or `(3, 3)`.
    Why:   an empty value may mean an empty text, zero or the default; to remove a key, write `null`.
    Diff:
        meta:
    -     owner:
    +     owner: me
          team: vision
    """
    # `following`: the next key of the same mapping, when it begins a line of its own below this one.
    if following is None:
        hint = (
            f"give `{name}` a value; a list of names is written `[{name}, ...]`" if flow else f"give `{name}` a value"
        )
        return error("Y009", key, f"`{name}` has no value", hint)
    other, span = following
    message = f"`{name}` has no value: `{other}` on line {span.line} is not indented below it"
    related = (Related(span, f"not inside `{name}`"),)
    return error("Y009", key, message, f"give `{name}` a value, or indent what belongs inside it", related)


def decimal_comma(span: Span, text: str) -> Diagnostic:
    """Return the diagnostic for a number with a decimal comma inside brackets, such as `0,001` (`text`). YAML reads it
    as the number 0 and a key `001` without a value."""
    point = text.replace(",", ".")
    return error(
        "Y009",
        span,
        f"`{text}` is read as two entries: inside brackets a comma ends a value",
        f"write `{point}` for the number",
    )


def cut_tuple(span: Span, text: str, written: str) -> Diagnostic:
    """Return the diagnostic for Python's `(3, 3)` inside YAML brackets, where a comma ends a value. `text`: what was
    typed; `written`: how to write it."""
    message = f"`{text}` is split at its commas: a list has square brackets"
    return error("Y009", span, message, f"write `{written}`", fixes=(Fix(span, written, safe=True),))


def cut_expression(span: Span, written: str) -> Diagnostic:
    message = "inside brackets this text is split at its commas: an expression with a comma needs quotes here"
    return error("Y009", span, message, f"write `{written}`", fixes=(Fix(span, written, safe=True),))


def empty_item(dash: Span) -> Diagnostic:
    return error("Y009", dash, "this list item has no value", "give it a value, or take the `-` out")


def empty_option(span: Span, name: str) -> Diagnostic:
    return error(
        "Y009", span, f"`{name}` is set to nothing", f'`{name}=null` removes it, `{name}=""` is the empty text'
    )


def key_not_text(span: Span, text: str, kind: str) -> Diagnostic:
    """key-not-text (Y010)

    Finds: a key that YAML reads as a number, a boolean, null, a list or a mapping, or a `:` without a key before it.
    Why:   all keys are texts: they are used in dotted paths, in `--set` and in checkpoints.
    Diff:
        meta:
    -     2026: a good year
    +     "2026": a good year
    """
    message = f"the key `{text}` is {kind}; keys are text"
    return error("Y010", span, message, f'write `"{text}"`', fixes=(Fix(span, f'"{text}"', safe=True),))


def key_not_scalar(span: Span, kind: str) -> Diagnostic:
    return error("Y010", span, f"{kind} is used as a key; keys are text", "name the key with a word")


def empty_key(span: Span) -> Diagnostic:
    return error("Y010", span, "there is no key before the `:`", "name the key")


def unknown_anchor(span: Span, name: str, known: Iterable[str]) -> Diagnostic:
    """unknown-anchor (Y011)

    Finds: an alias `*name` without an anchor `&name` above it, or inside the value that has this anchor.
    Why:   an alias repeats a value that is complete before it, in the same file.
    Diff:
        meta:
    +     team: &team vision
          owner: *team
    """
    names = list(known)
    hint = did_you_mean(name, names) if names else f'if the text `*{name}` is meant, quote it: `"*{name}"`'
    fixes = suggest_fix(span.within(1, len(name)), name, names)
    return error("Y011", span, f"there is no anchor `&{name}` above", hint, fixes=fixes)


def anchor_in_itself(span: Span, name: str) -> Diagnostic:
    return error("Y011", span, f"`*{name}` is inside `&{name}`, so it would contain itself", "write the value out")


def too_many_nodes(span: Span, limit: int, *, alias: bool) -> Diagnostic:
    """too-many-nodes (Y012)

    Finds: a file with more than 200,000 values, after its aliases are replaced by the values that they repeat.
    Why:   with aliases of aliases, ten lines can expand to billions of values and use up the memory.
    Diff:
        meta:
    -     a: &a [x, x, x, x, x, x, x, x, x, x]
    -     b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]
    -     c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]
    -     d: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]
    -     e: [*d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d, *d]
    +     team: &team vision
    +     owner: *team
    """
    how = "with this alias the file grows to" if alias else "the file holds"
    return error("Y012", span, f"{how} more than {limit:,} values", "put tables of data into a file of their own")


def wrong_merge_key(span: Span, kind: str) -> Diagnostic:
    """wrong-merge-key (Y013)

    Finds: a merge key `<<` whose value is neither a mapping nor a list of mappings.
    Why:   `<<` inserts the keys of another mapping, and only mappings have keys.
    Diff:
        meta:
    -     sizes: &sizes [1, 2]
    +     sizes: &sizes {a: 1, b: 2}
          more: {<<: *sizes}
    """
    return error(
        "Y013", span, f"`<<` is {kind}, but only a mapping can be merged", "give it an alias of a mapping: `<<: *name`"
    )


def explicit_tag(span: Span, tag: str, *, text: str | None) -> Diagnostic:
    """explicit-tag (Y014)

    Finds: a YAML tag, such as `!!int` or `!name`.
    Why:   recipes have no tags: the type of each value is given by its key.
    Diff:
        training:
    -     steps: !!int 10
    +     steps: 10
    """
    # `text`: the whole value, when it may have been meant as text that begins with `!`.
    hint = f"take `{tag}` out"
    if text is not None:
        hint += f', or quote the text: `"{text}"`'
    return error("Y014", span, f"`{tag}` is a YAML tag, which recipes do not support", hint)


def too_deep(span: Span, limit: int) -> Diagnostic:
    """too-deep (Y015)

    Finds: lists and mappings that are nested more than 64 levels deep.
    Why:   no recipe needs as many levels, and very deep nesting makes programs that read YAML crash.
    Bad:
        meta:
          [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1
          ]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]
    Good:
        meta: {grid: [[[[1]]]]}
    """
    return error("Y015", span, f"values are nested more than {limit} deep here", "flatten it, or close a bracket")


def not_utf8(span: Span, byte: int) -> Diagnostic:
    r"""not-utf8 (Y016)

    Finds: a file that is not UTF-8 text: it has a byte that is not valid in UTF-8, or is UTF-16.
    Why:   the same bytes are other letters in another encoding, so names and paths would be read wrongly.
    Bad:
        # bytes: meta: {owner: Ren\xe9}
    Good:
        meta: {owner: René}
    """
    return error("Y016", span, f"the byte 0x{byte:02x} is not UTF-8", "save the file as UTF-8")


def another_encoding(span: Span, encoding: str) -> Diagnostic:
    return error("Y016", span, f"the file is {encoding}; recipes are UTF-8", "save the file as UTF-8")


def control_character(spans: Sequence[Span], character: str) -> Diagnostic:
    r"""control-character (Y017)

    Finds: a control character that YAML does not allow, such as NUL or escape, or half of a surrogate pair. In a line
           that cannot be parsed, also a character that only looks like a space, such as the no-break space.
    Why:   such characters cannot be seen. They come from damaged files, or from text copied out of a terminal, a web
           page or a chat.
    Bad:
        # bytes: meta: {owner: a\x07b}
    Good:
        meta: {owner: ab}
    """
    # `character` is the first of the characters at `spans`.
    others = f", and {len(spans) - 1} more in this file" if len(spans) > 1 else ""
    message = f"the character U+{ord(character):04X} is not allowed in YAML{others}"
    hint = 'take it out; inside double quotes an escape such as "\\x07" may be written'
    return error("Y017", spans[0], message, hint, fixes=tuple(Fix(span, "", safe=False) for span in spans))


def no_space(span: Span, character: str) -> Diagnostic:
    """Return the diagnostic for a character that looks like a space but is none in YAML, such as a pasted no-break
    space."""
    message = f"the character U+{ord(character):04X} looks like a space but is not one"
    return error("Y017", span, message, "write a space", fixes=(Fix(span, " ", safe=False),))


def empty_file(span: Span) -> Diagnostic:
    """empty-file (Y018)

    Finds: a file without any key: it is empty or has only comments.
    Why:   such a file describes no run, and as a base or with `--with` it changes nothing.
    Bad:
        # whole file
        # a story, but no recipe
    Good:
        meta: {owner: me}
    """
    return error("Y018", span, "the file has no keys, so it is not a recipe", "`dtrain init` writes a first one")


def several_documents(span: Span) -> Diagnostic:
    """several-documents (Y019)

    Finds: a second YAML document in the file, after `---` or `...`.
    Why:   a file contains one recipe; the second document would be ignored.
    Diff:
        meta: {owner: me}
    -   ---
    -   meta: {owner: you}
    """
    return error("Y019", span, "a second document begins here; a file is one recipe", "put it into a file of its own")


def not_a_mapping(span: Span, kind: str) -> Diagnostic:
    """not-a-mapping (Y020)

    Finds: a file that contains a list or a text instead of keys and values.
    Why:   a recipe is a mapping of sections.
    Bad:
        # whole file
        - training
        - data
    Good:
        meta: {owner: me}
    """
    return error(
        "Y020",
        span,
        f"the file is {kind}, but a recipe consists of keys and values",
        "begin with a key such as `name: ...`",
    )


def leading_zero(span: Span, text: str, value: int) -> Diagnostic:
    """leading-zero (Y021)

    Finds: an unquoted integer that begins with a zero.
    Why:   `010` is 10 in YAML 1.2 and in dtrain, but 8 in YAML 1.1, which many other tools use.
    Bad:
        meta: {house: 010}
    Good:
        meta: {house: 10}
    """
    message = f"`{text}` is {value} here, but an octal number in tools that read YAML 1.1"
    hint = f'write `{value}`, or `"{text}"` if it is text'
    return warning("Y021", span, message, hint, fixes=(Fix(span, str(value), safe=True),))


def unreadable_file(span: Span, path: str, reason: str, help: str | None = None) -> Diagnostic:
    """unreadable-file (Y023)

    Finds: a recipe that does not exist, is a folder, cannot be opened, or is too large to be a recipe.
    Why:   a file that cannot be read cannot be checked.
    Bad:
        # no file
    Good:
        meta: {owner: me}
    """
    return error("Y023", span, f"`{path}` {reason}", help)


def file_too_large(span: Span, path: str, limit_bytes: int) -> Diagnostic:
    message = f"`{path}` is larger than {limit_bytes // 1_000_000} MB, which no recipe is"
    return error("Y023", span, message, "put tables of data into a file of their own")


def not_a_recipe(span: Span, what: str, help: str) -> Diagnostic:
    """not-a-recipe (Y028)

    Finds: a file that is not a recipe, such as a table, a picture, weights, a saved plan, or the YAML of another
           program.
    Why:   if this file were read as a recipe, nearly every line would be reported as a mistake.
    Bad:
        # whole file
        {"version": 2, "dtrain_version": "0.1.0", "fingerprint": "1e91cab446a72a5e", "parameters": []}
    Good:
        meta: {owner: me}
    """
    return error("Y028", span, f"the file is {what}, not a recipe", help)
