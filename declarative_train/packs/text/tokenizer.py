"""Tokenizers: encode text as token numbers, and decode it.

They use Hugging Face's library `tokenizers`. A file of this library does not say which tokens begin, end and pad a
text, and has no chat template. These are read from other files in the same folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from declarative_train.core.machine import install
from declarative_train.core.untrusted import parse_json
from declarative_train.files.open_files import format_path, local_path, read_bytes
from declarative_train.files.paths import SourceError
from declarative_train.packs.text.conversion import convert
from declarative_train.packs.text.problem import TokenizerError as TokenizerError

BYTES = "bytes"
OF_SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
WITH_TOKENIZER = ("text", "tokens")  # types of the source and the field with a key `tokenizer`: a path, or `bytes`
FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
SIDE_FILES = (CONFIG, "special_tokens_map.json", TEMPLATE)
"""Files of the same folder that are read with the tokenizer file."""

ROLES = ("bos", "eos", "pad", "unk")
_USUAL = {  # common names of special tokens, for a tokenizer file without a config
    "bos": ("<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>"),
    "eos": ("</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|endoftext|>", "<|eot|>"),
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "unk": ("<unk>", "[UNK]"),
}


PATH_KEYS = ("tokenizer", "template")
"""Keys of the source `text` and the field `tokens` whose values are paths."""


def is_path(value: str) -> bool:
    """Return whether a recipe's value for a key `tokenizer` or `template` is a path. Otherwise it is the word `bytes`
    or the text of a template."""
    return value != BYTES and not is_inline(value)


def is_inline(template: str) -> bool:
    """Return whether `template` is the text of a chat template, not a path."""
    return "{%" in template or "{{" in template


class Tokenizer(ABC):
    """Tokenizer. Its tokens have the numbers 0 to `num_tokens` - 1. `special`: {role (bos, eos, pad or unk): number of
    the token}, without the roles that the tokenizer does not have. `chat_template`: Jinja text. `sha256`: hash that
    identifies the tokenizer."""

    num_tokens: int
    special: Mapping[str, int]
    chat_template: str | None
    sha256: str
    files: tuple[str, ...] = ()
    converted_files: Mapping[str, bytes] = {}
    """Path in `files` -> content that replaces it in copies: a converted tokenizer.json for a sentencepiece model."""
    published_file: bytes | None = None
    """Content of the tokenizer.json with the tokens that a recipe adds; None without such tokens."""

    @abstractmethod
    def encode(self, text: str, *, adds_special: bool = True) -> list[int]:
        """Return the tokens of a text. `adds_special`: include the tokens that the tokenizer puts around a text."""

    @abstractmethod
    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the tokens of a text, and the (begin, end) of each token in the text. Tokens that the tokenizer puts
        around a text are not added."""

    @abstractmethod
    def decode(self, tokens: Sequence[int], *, skips_special: bool = True) -> str: ...

    @abstractmethod
    def number(self, token: str) -> int | None:
        """Return the number of a token given by its text; None if there is no such token."""

    @abstractmethod
    def token_text(self, number: int) -> str:
        """Return the text of the token with this number."""

    def role(self, role: str, asked: bool | str) -> int | None:
        """Return the number of the token that a field uses for `role` (bos, eos, pad or unk), or None for no token.
        `asked`: the value in the recipe: the text of the token, True for the token that the tokenizer defines for the
        role, or False for none. Raises TokenizerError if the tokenizer does not have the token."""
        if asked is False:
            return None
        if isinstance(asked, str):
            found = self.number(asked)
            if found is None:
                raise TokenizerError(f"the tokenizer has no token `{asked}`", "name a token that it has")
            return found
        if role not in self.special:
            raise TokenizerError(
                f"the tokenizer does not say which token is its {role}",
                f"name one that it has: `{role}: <|endoftext|>`",
            )
        return self.special[role]


class AddedTokens(NamedTuple):
    """Texts of tokens that a recipe adds to a tokenizer. `special`: the texts of special tokens, which `decode`
    omits."""

    plain: tuple[str, ...] = ()
    special: tuple[str, ...] = ()


NOTHING_ADDED = AddedTokens()


class _ByteTokenizer(Tokenizer):
    """Tokenizer with one token for each byte value of UTF-8 text."""

    num_tokens = 256
    special: Mapping[str, int] = {}
    chat_template = None
    sha256 = hashlib.sha256(b"bytes").hexdigest()

    def encode(self, text: str, *, adds_special: bool = True) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        found = [(byte, (at, at + 1)) for at, sign in enumerate(text) for byte in self.encode(sign)]
        return [byte for byte, _ in found], [place for _, place in found]

    def decode(self, tokens: Sequence[int], *, skips_special: bool = True) -> str:
        return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")

    def number(self, token: str) -> int | None:
        found = token.encode()
        return found[0] if len(found) == 1 else None

    def token_text(self, number: int) -> str:
        return chr(number)


class _FileTokenizer(Tokenizer):
    """Tokenizer from a file of the library `tokenizers`."""

    def __init__(
        self,
        found: Any,
        path: str,
        content: bytes,
        file: Mapping[str, Any],
        side_files: Mapping[str, bytes],
        added: AddedTokens,
        *,
        is_made: bool = False,
    ) -> None:
        """Set the attributes of `Tokenizer` from the tokenizer's files. `found`: object of the library `tokenizers`.
        `content`, `file`: bytes and parsed JSON of its file. `side_files`: {name: content} of the other files. `added`:
        tokens that the recipe adds. `is_made`: `content` was converted from a sentencepiece model."""
        self._found = found
        self.converted_files = {path: content} if is_made else {}
        found.no_truncation()  # only the field's `length` cuts texts
        found.no_padding()
        if any(added):
            self.published_file = _add_tokens(found, file, added)
        numbers = found.get_vocab(with_added_tokens=True)
        self.num_tokens = max(numbers.values(), default=-1) + 1
        config = _read_config(side_files)
        self.special = {role: at for role in ROLES if (at := _role(role, config, numbers, file)) is not None}
        self.chat_template = _template(config, side_files)
        digest = hashlib.sha256(content)
        for name in sorted(side_files):
            digest.update(name.encode() + b"\0" + side_files[name])
        if any(added):
            digest.update(repr(tuple(added)).encode())
        self.sha256 = digest.hexdigest()
        self.files = (path, *(_side_path(path, name) for name in side_files))

    def encode(self, text: str, *, adds_special: bool = True) -> list[int]:
        found: list[int] = _call(self._found.encode, text, add_special_tokens=adds_special).ids
        return found

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        found = _call(self._found.encode, text, add_special_tokens=False)
        return found.ids, found.offsets

    def decode(self, tokens: Sequence[int], *, skips_special: bool = True) -> str:
        found: str = _call(self._found.decode, list(tokens), skip_special_tokens=skips_special)
        return found

    def number(self, token: str) -> int | None:
        found: int | None = self._found.token_to_id(token)
        return found

    def token_text(self, number: int) -> str:
        return str(self._found.id_to_token(number))


def _add_tokens(found: Any, file: Mapping[str, Any], added: AddedTokens) -> bytes:
    """Add tokens to `found`, a tokenizer of the library. Return the content of its file with these tokens. Raises
    TokenizerError for a token that the tokenizer already has."""
    from tokenizers import AddedToken

    known = next((text for text in (*added.plain, *added.special) if found.token_to_id(text) is not None), None)
    if known is not None:
        raise TokenizerError(f"the tokenizer already has a token `{known}`", f"remove `{known}` from `vocabulary`")
    found.add_tokens([AddedToken(text, normalized=False) for text in added.plain])
    found.add_special_tokens([AddedToken(text, normalized=False) for text in added.special])
    entries = json.loads(found.to_str())["added_tokens"]
    return json.dumps({**file, "added_tokens": entries}, indent=2, ensure_ascii=False).encode()


def _call(function: Callable[..., Any], *args: object, **keys: object) -> Any:
    """Call a function of the library `tokenizers`. Raises TokenizerError for the exceptions of the library and for
    panics of its Rust code. (In Python, a panic is a BaseException of a class that cannot be imported.)"""
    try:
        return function(*args, **keys)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise TokenizerError(f"the tokenizer fails: {reason}", "use a tokenizer that takes every text") from None


def tokenizer(path: str, added: AddedTokens = NOTHING_ADDED) -> Tokenizer:
    """Open a tokenizer. `path`: the word `bytes`, a tokenizer file, or a folder that contains one. `added`: tokens that
    the recipe adds. Raises TokenizerError."""
    if path == BYTES:
        if any(added):
            raise TokenizerError("`bytes` has a token for each byte and no others", "name a tokenizer file")
        return _ByteTokenizer()
    local = local_path(path)
    if local is not None and os.path.isdir(local):
        path = local = _find_in_folder(local)
    if local is None:
        return _open_file(path, 0, added)
    try:
        return _open_file(local, os.stat(local).st_mtime_ns, added)
    except OSError:
        raise TokenizerError(f"there is no file {format_path(path)}") from None


def tokenizer_of(component: Mapping[str, object]) -> Tokenizer:
    """Open the tokenizer that a source or a field of tokens names. `component`: its keys as data. Raises
    TokenizerError."""
    added: Any = component.get("vocabulary") or {}
    return tokenizer(
        str(component.get("tokenizer", BYTES)),
        AddedTokens(tuple(added.get("add", ())), tuple(added.get("add_special", ()))),
    )


def _find_in_folder(folder: str) -> str:
    """Return the path of the tokenizer file in a folder. Raises TokenizerError."""
    names = os.listdir(folder)
    for name in (FILE, *OF_SENTENCEPIECE):
        if name in names:
            return os.path.join(folder, name)
    other = next((name for name in names if name.endswith(".tiktoken")), None)
    if other is not None:
        raise _tiktoken_error(os.path.join(folder, other))
    raise TokenizerError(
        f"{format_path(folder)} has no {FILE}", "name a file of the library `tokenizers`, or its folder"
    )


def _tiktoken_error(path: str) -> TokenizerError:
    """Return the error for a tiktoken file. Such a file has no pattern for splitting texts, and therefore cannot be
    used."""
    code = (
        "from transformers.convert_slow_tokenizer import TikTokenConverter as C; "
        f"C('{format_path(path)}', extra_special_tokens=['<|endoftext|>']).converted().save('{FILE}')"
    )
    return TokenizerError(
        f"{format_path(path)} is a tiktoken file, which does not say how to split a text; dtrain reads a {FILE}",
        f'published models have one; to split texts as cl100k_base does: python -c "{code}"',
    )


@lru_cache(maxsize=16)
def _open_file(path: str, modified_ns: int, added: AddedTokens) -> Tokenizer:
    if path.endswith(".tiktoken"):
        raise _tiktoken_error(path)
    is_made = path.endswith(".model")
    try:
        content = convert(path, modified_ns) if is_made and modified_ns else read_bytes(path)
    except SourceError as error:
        raise TokenizerError(str(error), error.help) from error
    try:
        file = parse_json(content)
        if not isinstance(file.get("model"), dict):
            raise ValueError
    except (ValueError, AttributeError):
        hint = "such a file is what `Tokenizer.save` of the library `tokenizers` writes"
        raise TokenizerError(f"{format_path(path)} is not a tokenizer", hint) from None
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise TokenizerError("a tokenizer file needs the package tokenizers", install("text")) from None
    try:
        found = _call(Library.from_str, content.decode())
    except TokenizerError as error:
        raise TokenizerError(f"{format_path(path)} cannot be used: {error}") from error
    return _FileTokenizer(found, path, content, file, _read_side_files(path), added, is_made=is_made)


def _read_side_files(path: str) -> dict[str, bytes]:
    found = {}
    for name in SIDE_FILES:
        try:
            found[name] = read_bytes(_side_path(path, name))
        except SourceError:
            continue
    return found


def _side_path(path: str, name: str) -> str:
    """Return the path of the side file `name` (such as a config) that belongs to the tokenizer file `path`. It is in
    the same folder. If the tokenizer file has an unusual name, such as `a.json`, its side files are `a.NAME`, because a
    folder may have several tokenizers."""
    folder, _, file = path.rpartition("/")
    stem = "" if file in (FILE, *OF_SENTENCEPIECE) else f"{file.removesuffix('.json').removesuffix('.model')}."
    return f"{folder}/{stem}{name}" if folder else f"{stem}{name}"


# -- files that are copied into a checkpoint


def make_copies(components: Iterable[Mapping[str, object]]) -> dict[str, bytes]:
    """Return the files of tokenizers and chat templates that a checkpoint must contain, as {name in the checkpoint:
    content}. `components`: sources and fields, as mappings; their keys `tokenizer` and `template` name the files.
    Raises TokenizerError."""
    found: dict[str, bytes] = {}
    for component in components:
        template = component.get("template")
        if component.get("type") in WITH_TOKENIZER and isinstance(template, str) and not is_inline(template):
            found[_template_copy_name(template)] = _read(template)
        path = component.get("tokenizer")
        if not isinstance(path, str) or path == BYTES or component.get("type") not in WITH_TOKENIZER:
            continue
        name = _copy_name(path)
        opened = tokenizer(path)
        for each in opened.files:
            side = next((other for other in SIDE_FILES if each.endswith(other)), None)
            content = opened.converted_files.get(each) or _read(each)
            found[name if side is None else _side_path(name, side)] = content
    return found


def _read(path: str) -> bytes:
    try:
        return read_bytes(path)
    except SourceError as error:
        raise TokenizerError(str(error), error.help) from error


def make_published_files(found: Tokenizer) -> dict[str, bytes]:
    """Return the files of a tokenizer as they are published with a model, as a dict from name to content. If the
    tokenizer has no config, one with its special tokens is added. Raises TokenizerError."""
    files = {}
    for path in found.files:
        name = next((other for other in SIDE_FILES if path.endswith(other)), FILE)
        own = found.published_file if name == FILE else None
        files[name] = own or found.converted_files.get(path) or _read(path)
    if CONFIG not in files:
        named = {f"{role}_token": found.token_text(number) for role, number in found.special.items()}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
        files[CONFIG] = (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()
    return files


def _copy_name(path: str) -> str:
    return f"tokenizer_{hashlib.sha256(path.encode()).hexdigest()[:16]}.json"


def _template_copy_name(path: str) -> str:
    return f"template_{hashlib.sha256(path.encode()).hexdigest()[:16]}.jinja"


def use_checkpoint_copies(component: Mapping[str, object], folder: str, names: Collection[str]) -> dict[str, object]:
    """Return the component with the paths of its tokenizer and chat template replaced by the paths of their copies in a
    checkpoint. `folder`: folder of the checkpoint; `names`: files in it. A path without a copy is not changed."""
    found = dict(component)
    for key, name_of in (("tokenizer", _copy_name), ("template", _template_copy_name)):
        path = component.get(key)
        if isinstance(path, str) and name_of(path) in names:
            found[key] = f"{folder}/{name_of(path)}"
    return found


def _read_config(side_files: Mapping[str, bytes]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", CONFIG):
        try:
            found = parse_json(side_files[name])
        except (KeyError, ValueError):
            continue
        if isinstance(found, dict):
            config |= {key: value for key, value in found.items() if value is not None}
    return config


def _role(role: str, config: Mapping[str, Any], numbers: Mapping[str, int], file: Mapping[str, Any]) -> int | None:
    """Return the number of the token with a role such as `eos`; None if there is none. It is the token that `config`
    names for the role or, for the role `pad`, the padding token of tokenizer.json (`file`). If they name none, it is a
    special token with a usual name. `numbers`: {text of a token: its number}."""
    named = config.get(f"{role}_token")
    if isinstance(named, dict):
        named = named.get("content")
    if isinstance(named, str):
        return numbers.get(named)
    if role == "pad" and isinstance(file.get("padding"), dict):
        return int(file["padding"].get("pad_id", 0))
    special = {each.get("content") for each in file.get("added_tokens") or () if each.get("special")}
    return next((numbers[name] for name in _USUAL[role] if name in special and name in numbers), None)


def _template(config: Mapping[str, Any], side_files: Mapping[str, bytes]) -> str | None:
    if TEMPLATE in side_files:
        return side_files[TEMPLATE].decode("utf-8", "replace")
    found = config.get("chat_template")
    if isinstance(found, list):  # a list of {name, template}
        found = next((each.get("template") for each in found if each.get("name") == "default"), None)
    return found if isinstance(found, str) else None
