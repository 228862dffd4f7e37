"""A tokenizer file -> text as token numbers, and back.

Hugging Face's `tokenizers` does the work; what its file does not say (which token begins and ends a text, which one
pads, the chat template) stands in the folder that the file is published in.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from declarative_train.components.texts.conversion import converted
from declarative_train.components.texts.problem import TokenizerError as TokenizerError
from declarative_train.core.json_text import parse_json
from declarative_train.core.machine import install
from declarative_train.files.errors import SourceError
from declarative_train.files.open_files import local_path, read_bytes, shown

BYTES = "bytes"
OF_SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
WITH_TOKENIZER = ("text", "tokens")  # the source and the field whose `tokenizer` is a path, or `bytes`
FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
BESIDE = (CONFIG, "special_tokens_map.json", TEMPLATE)
"""What stands beside the file and is read with it."""

ROLES = ("bos", "eos", "pad", "unk")
_USUAL = {  # of tokenizers without a folder
    "bos": ("<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>"),
    "eos": ("</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|endoftext|>", "<|eot|>"),
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "unk": ("<unk>", "[UNK]"),
}


def is_inline(template: str) -> bool:
    """A chat template itself, and not the file of one."""
    return "{%" in template or "{{" in template


class Tokenizer(ABC):
    """`num_tokens`: token numbers go from 0 to this - 1. `special`: numbers of the tokens for bos, eos, pad and unk, as
    far as it has them. `chat_template`: Jinja. `sha256` tells two tokenizers apart."""

    num_tokens: int
    special: Mapping[str, int]
    chat_template: str | None
    sha256: str
    files: tuple[str, ...] = ()
    made: Mapping[str, bytes] = {}
    """What stands in the place of some of `files` where they are copied to."""

    @abstractmethod
    def encode(self, text: str, *, adds_special: bool = True) -> list[int]:
        """`adds_special`: with the tokens that the tokenizer puts around a text by itself."""

    @abstractmethod
    def places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokens, nothing added, and from where to where in the text each stands."""

    @abstractmethod
    def decode(self, tokens: Sequence[int], *, skips_special: bool = True) -> str: ...

    @abstractmethod
    def number(self, token: str) -> int | None:
        """Of a token as it is written."""

    @abstractmethod
    def written(self, number: int) -> str:
        """How a token is written."""

    def role(self, role: str, asked: bool | str) -> int | None:
        """The token that a recipe asks for with `true` or by its name; None with `false`. Raises TokenizerError."""
        if asked is False:
            return None
        if isinstance(asked, str):
            found = self.number(asked)
            if found is None:
                raise TokenizerError(f"the tokenizer has no token `{asked}`", "write one that it has")
            return found
        if role not in self.special:
            raise TokenizerError(
                f"nothing says which token is its {role}", f"name one that it has: `{role}: <|endoftext|>`"
            )
        return self.special[role]


class _Bytes(Tokenizer):
    """Every byte of the UTF-8 text."""

    num_tokens = 256
    special: Mapping[str, int] = {}
    chat_template = None
    sha256 = hashlib.sha256(b"bytes").hexdigest()

    def encode(self, text: str, *, adds_special: bool = True) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        found = [(byte, (at, at + 1)) for at, sign in enumerate(text) for byte in self.encode(sign)]
        return [byte for byte, _ in found], [place for _, place in found]

    def decode(self, tokens: Sequence[int], *, skips_special: bool = True) -> str:
        return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")

    def number(self, token: str) -> int | None:
        found = token.encode()
        return found[0] if len(found) == 1 else None

    def written(self, number: int) -> str:
        return chr(number)


class _FromFile(Tokenizer):
    """Of a file of the library `tokenizers`."""

    def __init__(
        self,
        found: Any,
        path: str,
        content: bytes,
        file: Mapping[str, Any],
        beside: Mapping[str, bytes],
        *,
        is_made: bool = False,
    ) -> None:
        """`content`: the bytes of the file, and `file` what they say."""
        self._found = found
        self.made = {path: content} if is_made else {}
        found.no_truncation()  # the field's `length` decides
        found.no_padding()
        numbers = found.get_vocab(with_added_tokens=True)
        self.num_tokens = max(numbers.values(), default=-1) + 1
        config = _read_config(beside)
        self.special = {role: at for role in ROLES if (at := _role(role, config, numbers, file)) is not None}
        self.chat_template = _template(config, beside)
        digest = hashlib.sha256(content)
        for name in sorted(beside):
            digest.update(name.encode() + b"\0" + beside[name])
        self.sha256 = digest.hexdigest()
        self.files = (path, *(_place_beside(path, name) for name in beside))

    def encode(self, text: str, *, adds_special: bool = True) -> list[int]:
        found: list[int] = _call(self._found.encode, text, add_special_tokens=adds_special).ids
        return found

    def places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        found = _call(self._found.encode, text, add_special_tokens=False)
        return found.ids, found.offsets

    def decode(self, tokens: Sequence[int], *, skips_special: bool = True) -> str:
        found: str = _call(self._found.decode, list(tokens), skip_special_tokens=skips_special)
        return found

    def number(self, token: str) -> int | None:
        found: int | None = self._found.token_to_id(token)
        return found

    def written(self, number: int) -> str:
        return str(self._found.id_to_token(number))


def _call(function: Callable[..., Any], *args: object, **keys: object) -> Any:
    """Return what a function of the library `tokenizers` gives. Raises TokenizerError where the library fails: its
    plain exceptions, and Rust's panics, which reach Python as a BaseException of a module that cannot be imported."""
    try:
        return function(*args, **keys)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise TokenizerError(f"the tokenizer fails: {reason}", "use a tokenizer that takes every text") from None


def tokenizer(path: str) -> Tokenizer:
    """`bytes`, a file, or a folder with one. Raises TokenizerError."""
    if path == BYTES:
        return _Bytes()
    local = local_path(path)
    if local is not None and os.path.isdir(local):
        path = local = _in_folder(local)
    if local is None:
        return _opened(path, 0)
    try:
        return _opened(local, os.stat(local).st_mtime_ns)
    except OSError:
        raise TokenizerError(f"there is no file {shown(path)}") from None


def _in_folder(folder: str) -> str:
    """Its file. Raises TokenizerError."""
    names = os.listdir(folder)
    for name in (FILE, *OF_SENTENCEPIECE):
        if name in names:
            return os.path.join(folder, name)
    other = next((name for name in names if name.endswith(".tiktoken")), None)
    if other is not None:
        raise _of_tiktoken(os.path.join(folder, other))
    raise TokenizerError(f"{shown(folder)} has no {FILE}", "name a file of the library `tokenizers`, or its folder")


def _of_tiktoken(path: str) -> TokenizerError:
    """Its merges alone do not say how a text is cut."""
    code = (
        "from transformers.convert_slow_tokenizer import TikTokenConverter as C; "
        f"C('{shown(path)}', extra_special_tokens=['<|endoftext|>']).converted().save('{FILE}')"
    )
    return TokenizerError(
        f"{shown(path)} is a file of tiktoken, which does not say how a text is cut, and a {FILE} is read",
        f'published models have one; for texts cut as cl100k_base cuts them: python -c "{code}"',
    )


@lru_cache(maxsize=16)
def _opened(path: str, modified_ns: int) -> Tokenizer:
    if path.endswith(".tiktoken"):
        raise _of_tiktoken(path)
    is_made = path.endswith(".model")
    try:
        content = converted(path, modified_ns) if is_made and modified_ns else read_bytes(path)
    except SourceError as error:
        raise TokenizerError(str(error), error.help) from error
    try:
        file = parse_json(content)
        if not isinstance(file.get("model"), dict):
            raise ValueError
    except (ValueError, AttributeError):
        hint = "such a file is what `Tokenizer.save` of the library `tokenizers` writes"
        raise TokenizerError(f"{shown(path)} is not a tokenizer", hint) from None
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise TokenizerError("a tokenizer file needs the package tokenizers", install("text")) from None
    try:
        found = _call(Library.from_str, content.decode())
    except TokenizerError as error:
        raise TokenizerError(f"{shown(path)} cannot be used: {error}") from error
    return _FromFile(found, path, content, file, _beside(path), is_made=is_made)


def _beside(path: str) -> dict[str, bytes]:
    found = {}
    for name in BESIDE:
        try:
            found[name] = read_bytes(_place_beside(path, name))
        except SourceError:
            continue
    return found


def _place_beside(path: str, name: str) -> str:
    """Of `tokenizer.json` in its folder; of another name, which may be one of several, behind that name."""
    folder, _, file = path.rpartition("/")
    stem = "" if file in (FILE, *OF_SENTENCEPIECE) else f"{file.removesuffix('.json').removesuffix('.model')}."
    return f"{folder}/{stem}{name}" if folder else f"{stem}{name}"


# -- what travels with a checkpoint


def copies(components: Iterable[Mapping[str, object]]) -> dict[str, bytes]:
    """The files of the tokenizers and chat templates that these components name, by the names that they have in a
    checkpoint. Raises TokenizerError."""
    found: dict[str, bytes] = {}
    for component in components:
        template = component.get("template")
        if component.get("type") in WITH_TOKENIZER and isinstance(template, str) and not is_inline(template):
            found[_copy_of_template(template)] = _read(template)
        path = component.get("tokenizer")
        if not isinstance(path, str) or path == BYTES or component.get("type") not in WITH_TOKENIZER:
            continue
        name = _copy_of(path)
        opened = tokenizer(path)
        for each in opened.files:
            beside = next((other for other in BESIDE if each.endswith(other)), None)
            content = opened.made.get(each) or _read(each)
            found[name if beside is None else _place_beside(name, beside)] = content
    return found


def _read(path: str) -> bytes:
    try:
        return read_bytes(path)
    except SourceError as error:
        raise TokenizerError(str(error), error.help) from error


def published_files(found: Tokenizer) -> dict[str, bytes]:
    """As a folder of a published model has them; one that has no config gets one that names its special tokens. Raises
    TokenizerError."""
    files = {}
    for path in found.files:
        name = next((other for other in BESIDE if path.endswith(other)), FILE)
        files[name] = found.made.get(path) or _read(path)
    if CONFIG not in files:
        named = {f"{role}_token": found.written(number) for role, number in found.special.items()}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
        files[CONFIG] = (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()
    return files


def _copy_of(path: str) -> str:
    return f"tokenizer_{hashlib.sha256(path.encode()).hexdigest()[:16]}.json"


def _copy_of_template(path: str) -> str:
    return f"template_{hashlib.sha256(path.encode()).hexdigest()[:16]}.jinja"


def of_copy(component: Mapping[str, object], folder: str, names: Collection[str]) -> dict[str, object]:
    """The component with the tokenizer and the chat template that lie among `names` in a checkpoint's folder, if its
    own do."""
    found = dict(component)
    for key, name_of in (("tokenizer", _copy_of), ("template", _copy_of_template)):
        path = component.get(key)
        if isinstance(path, str) and name_of(path) in names:
            found[key] = f"{folder}/{name_of(path)}"
    return found


def _read_config(beside: Mapping[str, bytes]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", CONFIG):
        try:
            found = parse_json(beside[name])
        except (KeyError, ValueError):
            continue
        if isinstance(found, dict):
            config |= {key: value for key, value in found.items() if value is not None}
    return config


def _role(role: str, config: Mapping[str, Any], numbers: Mapping[str, int], file: Mapping[str, Any]) -> int | None:
    """As the folder says; else, of a file alone, the special token that is called as such tokens usually are."""
    named = config.get(f"{role}_token")
    if isinstance(named, dict):
        named = named.get("content")
    if isinstance(named, str):
        return numbers.get(named)
    if role == "pad" and isinstance(file.get("padding"), dict):
        return int(file["padding"].get("pad_id", 0))
    special = {each.get("content") for each in file.get("added_tokens") or () if each.get("special")}
    return next((numbers[name] for name in _USUAL[role] if name in special and name in numbers), None)


def _template(config: Mapping[str, Any], beside: Mapping[str, bytes]) -> str | None:
    if TEMPLATE in beside:
        return beside[TEMPLATE].decode("utf-8", "replace")
    found = config.get("chat_template")
    if isinstance(found, list):  # several by name
        found = next((each.get("template") for each in found if each.get("name") == "default"), None)
    return found if isinstance(found, str) else None
