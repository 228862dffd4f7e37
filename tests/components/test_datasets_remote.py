"""Files behind servers that fail: reads are tried again, values are those of the file, and what fails in the end is one
message."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pytest

from declarative_train.components.data import Table
from declarative_train.components.datasets.csv import CsvDataset
from declarative_train.components.datasets.parquet import ParquetDataset
from declarative_train.core.secrets import record_variable
from declarative_train.data.source import record_file
from declarative_train.files import remote
from declarative_train.files.open_files import read_bytes
from declarative_train.files.paths import SourceError
from declarative_train.packs.images.image_folder import ImageFolderDataset
from declarative_train.packs.tables.tar import TarDataset

pa = pytest.importorskip("pyarrow")
pytest.importorskip("aiohttp")

ROWS = 20_000


@dataclass
class Server:
    """Files of a folder by HTTP, ranges too. `fault`: by the number of a request, what goes wrong with it."""

    folder: Path
    address: str = ""
    fault: Callable[[int], str] = lambda _: ""
    asked: list[str] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)  # where a path redirects to
    sent: int = 0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    from fsspec.implementations.http import HTTPFileSystem
    from pyarrow import parquet

    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    HTTPFileSystem.clear_instance_cache()
    draws = np.random.default_rng(0)
    table = pa.table({"x": draws.standard_normal(ROWS), "y": np.arange(ROWS)})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2_000)
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{number},{number % 7}\n" for number in range(ROWS)))
    found = Server(tmp_path)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            with lock:
                found.asked.append(self.path)
                fault = found.fault(len(found.asked))
            file = found.folder / unquote(self.path.partition("?")[0]).strip("/")
            if self.path in found.moved:
                self.send_response(302)
                self.send_header("Location", found.moved[self.path])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if file.is_dir() and not fault.isdigit():
                self._listing(file)
                return
            if fault.isdigit() or not file.is_file():
                self.send_response(int(fault) if fault.isdigit() else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if fault == "slow":
                time.sleep(0.3)
            if fault == "silent":
                time.sleep(5)
            content, status, size = file.read_bytes(), 200, file.stat().st_size
            if wanted := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
                begin, end = int(wanted[1]), min(int(wanted[2]) + 1, size)
                content, status = content[begin:end], 206
            self.send_response(status)
            if status == 206:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", f'"{file.stat().st_mtime_ns}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                found.sent += len(content)
                self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
            if fault == "cut":
                self.close_connection = True

        def _listing(self, folder: Path) -> None:
            links = ['<a href="?C=N;O=D">Name</a>', '<a href="../">up</a>']
            names = sorted(each.name + "/" * each.is_dir() for each in folder.iterdir())
            links += [f'<a href="{quote(name)}">{name}</a>' for name in names]
            content = "<br>".join(links).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    found.address = f"http://127.0.0.1:{http.server_address[1]}"
    try:
        yield found
    finally:
        http.shutdown()
        http.server_close()
        thread.join(10)


def opened(kind: str, path: str) -> Table:
    return (ParquetDataset(path=path) if kind == "parquet" else CsvDataset(path=path)).open()


def every_third(fault: str) -> Callable[[int], str]:
    return lambda number: fault if number % 3 == 0 else ""


@pytest.mark.parametrize("fault", ["500", "429", "cut", "slow"])
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_what_fails_for_a_moment_is_read_in_the_end(server: Server, kind: str, fault: str) -> None:
    server.fault = every_third(fault)
    table = opened(kind, f"{server.address}/a.{kind}")
    wanted = opened(kind, str(server.folder / f"a.{kind}"))
    for rows in (slice(0, 10), slice(ROWS - 5, ROWS), np.asarray([17, 9_000, 3])):
        for name, values in table.read(["x", "y"], rows).items():
            assert (values == wanted.read([name], rows)[name]).all()
    assert len(server.asked) >= 3


@pytest.mark.parametrize(("fault", "why"), [("503", "503"), ("cut", ".+")])
def test_what_fails_for_good_is_one_message(server: Server, fault: str, why: str) -> None:
    table = opened("parquet", f"{server.address}/a.parquet?key=s3cret")
    server.fault = lambda _: fault
    with pytest.raises(SourceError) as found:
        table.read(["x"], slice(10_000, 10_010))
    said = str(found.value)
    assert re.fullmatch(rf"cannot read `x` in row group 5 of http://\S+/a.parquet\?key=\*\*\*: .*{why}.*", said), said
    assert "tried 5 times in" in said
    assert "s3cret" not in said


def test_a_server_that_is_silent_is_not_waited_for_without_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SILENT_S", 0.4)
    table = opened("parquet", f"{server.address}/a.parquet")
    server.fault = lambda _: "silent"
    begun = time.monotonic()
    with pytest.raises(SourceError, match=r"it sent nothing for 0.4 s, tried 2 times"):
        table.read(["x"], slice(10_000, 10_010))
    assert time.monotonic() - begun < 4


def test_a_server_that_always_fails_is_not_a_file_that_is_missing(server: Server) -> None:
    server.fault = lambda _: "500"
    with pytest.raises(SourceError, match=r"cannot look at http\S+: 500.*tried 5 times") as found:
        opened("csv", f"{server.address}/a.csv")
    assert found.value.problem == "unreadable"


def test_a_redirect_to_the_same_server_is_followed(server: Server) -> None:
    server.moved = {"/old.csv": "/a.csv", "/older.csv": f"{server.address}/old.csv"}
    assert opened("csv", f"{server.address}/older.csv").num_rows == ROWS


def test_a_redirect_to_another_server_is_refused(server: Server) -> None:
    """The other port of this machine is another server: one that only it can reach."""
    other = server.address.replace("127.0.0.1", "localhost")
    server.moved = {"/old.csv": f"{other}/a.csv"}
    with pytest.raises(SourceError) as caught:
        opened("csv", f"{server.address}/old.csv")
    port = server.address.rpartition(":")[2]
    assert str(caught.value).endswith(
        f"127.0.0.1:{port} redirects to another server, localhost:{port}, which is not followed; use the new address"
    )
    assert set(server.asked) == {"/old.csv"}
    assert len(server.asked) <= 2  # HEAD and GET, none of them twice


def test_a_value_of_the_environment_in_a_url_is_announced_once(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    (server.folder / "t0ken-1.csv").write_text("x\n1\n")
    record_variable("A_TOKEN", "t0ken-1")
    for _ in range(2):
        opened("csv", f"{server.address}/t0ken-1.csv")
    host = server.address.removeprefix("http://")
    wanted = f"dtrain: {host} receives the value of `A_TOKEN`, which the recipe puts into a URL\n"
    assert capsys.readouterr().err == wanted
    with pytest.raises(SourceError, match=r"there is no file http://[^/]*/\{\{ env\.A_TOKEN \}\}2\.csv"):
        opened("csv", f"{server.address}/t0ken-12.csv")


def test_a_file_that_is_missing_is_not_tried_again(server: Server) -> None:
    with pytest.raises(SourceError, match="there is no file") as found:
        opened("csv", f"{server.address}/none.csv")
    assert found.value.problem == "not_found"
    assert server.asked.count("/none.csv") == 2  # by HEAD and GET


def test_an_epoch_asks_for_each_row_group_once_and_the_next_for_nothing(server: Server) -> None:
    wanted = opened("parquet", str(server.folder / "a.parquet"))
    table = opened("parquet", f"{server.address}/a.parquet")
    assert len(server.asked) == 2  # size and tag; the footer
    size = (server.folder / "a.parquet").stat().st_size
    draws = np.random.default_rng(0)
    for epoch in range(2):
        for group in draws.permutation(10).tolist():
            rows = slice(group * 2_000, (group + 1) * 2_000)
            found = table.read_once(["x", "y"], rows)  # two columns that lie side by side
            assert all((values == wanted.read([name], rows)[name]).all() for name, values in found.items())
        if not epoch:
            assert len(server.asked) <= 2 + 10
            assert server.sent <= size
            server.asked.clear()
    assert server.asked == []
    opened("parquet", f"{server.address}/a.parquet").read(["x"], slice(0, ROWS))
    assert len(server.asked) == 1  # whether it is still the same


def test_a_file_that_is_another_is_read_anew(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{server.address}/a.csv"
    before = opened("csv", url).read(["y"], slice(0, ROWS))["y"]
    content = (server.folder / "a.csv").read_text().replace(",6\n", ",5\n")
    (server.folder / "a.csv").write_text(content)
    after = opened("csv", url).read(["y"], slice(0, ROWS))["y"]
    assert (np.minimum(before, 5) == after).all()
    assert (before != after).any()


def test_a_file_that_changes_while_it_is_read_ends_the_reading(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from declarative_train.files import range_cache

    table = opened("parquet", f"{server.address}/a.parquet")
    table.read(["x"], slice(0, 10))
    monkeypatch.setattr(range_cache, "ASKED_S", 0.0)
    (server.folder / "a.parquet").touch()
    with pytest.raises(SourceError, match=r"a\.parquet changed while it was being read"):
        table.read(["x"], slice(10_000, 10_010))


def test_without_a_cache_files_are_read_as_well(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_CACHE_GB", "0")
    table = opened("parquet", f"{server.address}/a.parquet")
    wanted = opened("parquet", str(server.folder / "a.parquet"))
    rows = np.asarray([17, 9_000, 3])
    assert (table.read(["x"], rows)["x"] == wanted.read(["x"], rows)["x"]).all()
    assert not (server.folder / "cache" / "dtrain" / "remote").exists()


def test_a_forbidden_file_is_not_asked_for_again(server: Server) -> None:
    server.fault = lambda _: "403"
    with pytest.raises(SourceError, match="403"):
        read_bytes(f"{server.address}/a.csv", 0, 8)
    assert len(server.asked) == 1


@pytest.mark.long
def test_files_in_a_bucket_are_read_as_those_of_this_machine(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    import fsspec
    from werkzeug.serving import WSGIRequestHandler

    asked: list[str] = []
    monkeypatch.setattr(WSGIRequestHandler, "log_request", lambda self, *_: asked.append(self.requestline))
    bucket = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    bucket.start()
    try:
        host, port = bucket.get_host_and_port()
        for name, value in {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        }.items():
            monkeypatch.setenv(name, value)
        client = fsspec.filesystem("s3")
        client.mkdir("made")
        for name in ("one", "two"):
            client.put(str(server.folder / "a.parquet"), f"made/data/{name}.parquet")
        table = opened("parquet", "s3://made/data/*.parquet")
        wanted = opened("parquet", str(server.folder / "a.parquet"))
        assert table.num_rows == 2 * ROWS
        rows = np.asarray([5, 12_345])
        assert (table.read(["x"], rows + ROWS)["x"] == wanted.read(["x"], rows)["x"]).all()
        asked.clear()
        table = opened("parquet", "s3://made/data/*.parquet")
        assert len(asked) <= 2  # the listing says size and tag of each; the footers are known
        for start in range(0, 2 * ROWS, 2_000):
            table.read_once(["x", "y"], slice(start, start + 2_000))
        assert len([line for line in asked if line.startswith("GET /made/data/")]) <= 20
        asked.clear()
        for start in range(0, 2 * ROWS, 2_000):
            table.read_once(["x", "y"], slice(start, start + 2_000))
        assert asked == []
        with pytest.raises(SourceError, match=r"there is no file s3://made/data/three\.parquet"):
            opened("parquet", "s3://made/data/three.parquet")
        here = pets(server.folder)
        client.put(str(here), "made/pets", recursive=True)
        asked.clear()
        pictures = ImageFolderDataset(path="s3://made/pets").open()
        assert len(asked) <= 2
        same_as_here(pictures, here)
        assert len([line for line in asked if line.startswith("HEAD")]) == 0  # the listing says size and tag of each
        asked.clear()
        same_as_here(pictures, here)
        assert asked == []
        with pytest.raises(SourceError, match="there is no picture in s3://made/cats"):
            ImageFolderDataset(path="s3://made/cats").open()
    finally:
        bucket.stop()


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("gs://bucket/a.csv", "gcsfs", "gcs"),
        ("s3://bucket/*.csv", "s3fs", "s3"),
        ("zip://a.csv::https://host/a.zip", "aiohttp", "http"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    url: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.http import HTTPFileSystem
    from fsspec.registry import _registry

    for scheme in ("gs", "s3", "https"):
        monkeypatch.delitem(_registry, scheme, raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, HTTPFileSystem.__module__)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SourceError, match=rf"cannot open {re.escape(url)}: .*{package}") as found:
        opened("csv", url)
    assert found.value.problem == "no_file_system"
    assert f"install 'declarative_train[{extra}]'" in (found.value.help or "")


def test_google_cloud_storage_is_read_by_listing_and_range(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a file system that answers as gcsfs does, which asks nobody."""
    import fsspec

    asked: list[str] = []
    content = (server.folder / "a.parquet").read_bytes()
    stored = {"made/data/one.parquet": content, "made/data/two.parquet": content, "made/closed/a.csv": b"x\n1\n"}

    class Google(fsspec.AbstractFileSystem):  # type: ignore[misc]
        protocol = ("gs", "gcs")

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.removeprefix("gs://").strip("/")

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            asked.append("info")
            return self._told(path)

        def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
            asked.append("ls")
            below = f"{self._strip_protocol(path)}/"
            names = {below + name[len(below) :].partition("/")[0] for name in stored if name.startswith(below)}
            return [self._told(name) if detail else name for name in sorted(names)]

        def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
            asked.append(f"{start}-{end}")
            if "closed" in path:
                raise PermissionError("Anonymous caller does not have storage.objects.get access")
            return stored[self._strip_protocol(path)][start:end]

        def _told(self, path: str) -> dict[str, Any]:
            name = self._strip_protocol(path)
            if name in stored:
                return {"name": name, "size": len(stored[name]), "type": "file", "etag": "CKi1"}
            if not any(each.startswith(f"{name}/") for each in stored):
                raise FileNotFoundError(path)
            return {"name": name, "size": 0, "type": "directory"}

    fsspec.register_implementation("gs", Google, clobber=True)
    try:
        table = opened("parquet", "gs://made/data/*.parquet")
        assert table.files == ("gs://made/data/one.parquet", "gs://made/data/two.parquet")
        assert asked.count("info") + asked.count("ls") <= 3  # of the folder; none for each file
        wanted = opened("parquet", str(server.folder / "a.parquet"))
        rows = np.asarray([5, 12_345])
        assert (table.read(["x"], rows + ROWS)["x"] == wanted.read(["x"], rows)["x"]).all()
        asked.clear()
        opened("parquet", "gs://made/data/*.parquet").read(["x"], rows + ROWS)
        assert not [each for each in asked if "-" in each]
        with pytest.raises(SourceError, match=r"gs://made/closed/a\.csv: Anonymous caller does not have"):
            opened("csv", "gs://made/closed/a.csv")
        with pytest.raises(SourceError, match=r"there is no file gs://made/data/three\.parquet"):
            opened("parquet", "gs://made/data/three.parquet")
    finally:
        from fsspec.registry import _registry

        _registry.pop("gs", None)


def test_archives_of_a_server_are_read_by_range(server: Server) -> None:
    import io
    import tarfile

    with tarfile.open(server.folder / "a.tar", "w") as archive:
        for number in range(300):
            for ending, content in (("bin", bytes([number % 256]) * (number * 7)), ("txt", f"{number}".encode())):
                member = tarfile.TarInfo(f"{number:04}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    size = (server.folder / "a.tar").stat().st_size
    table = TarDataset(path=f"{server.address}/a.tar").open()
    assert table.num_rows == 300
    assert server.sent <= size  # once, to find where files begin
    assert len(server.asked) < 12
    server.asked.clear()
    read = table.read(["bin", "txt"], np.random.default_rng(0).permutation(300))
    assert all(
        set(one) <= {int(two) % 256} and len(one) == 7 * int(two) for one, two in zip(*read.values(), strict=True)
    )
    assert server.asked == []
    TarDataset(path=f"{server.address}/a.tar").open()
    assert len(server.asked) == 1


def pets(folder: Path) -> Path:
    """Files that look like pictures of a name, in two classes; and others next to them."""
    for name in ("big cat/1.png", "big cat/2.jpg", "dog/deep/3.png", "dog/4.PNG", "dog/.hidden.png", "dog/notes.txt"):
        (folder / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "pets" / name).write_bytes(f"picture {name}".encode() * 9_000)  # more than a grain of the cache
    return folder / "pets"


def same_as_here(table: Table, here: Path) -> None:
    wanted = ImageFolderDataset(path=str(here)).open()
    assert table.num_rows == wanted.num_rows == 4
    for column in ("label", "image"):
        found, expected = table.read([column], slice(0, 4)), wanted.read([column], slice(0, 4))
        assert found[column].tolist() == expected[column].tolist()
    assert table.read(["image"], np.asarray([2]))["image"][0] == wanted.read(["image"], np.asarray([2]))["image"][0]


def test_a_folder_of_pictures_behind_a_server_is_that_of_this_machine(server: Server) -> None:
    here = pets(server.folder)
    server.fault = every_third("500")
    table = ImageFolderDataset(path=f"{server.address}/pets/").open()
    same_as_here(table, here)
    server.fault = lambda _: ""
    server.sent = 0
    same_as_here(table, here)
    assert server.sent == 0  # kept on disk
    before = record_file(table.files[0], whole=False)
    assert before == record_file(table.files[0], whole=False)
    (here / "dog" / "5.png").write_bytes(b"new")
    assert before != record_file(table.files[0], whole=False)
    assert ImageFolderDataset(path=f"{server.address}/pets").open().num_rows == 5
    server.fault = lambda _: "500"
    with pytest.raises(SourceError, match="500"):  # never a folder without some of its pictures
        ImageFolderDataset(path=f"{server.address}/pets").open()


def test_a_folder_that_is_not_there_or_has_no_picture_says_so(server: Server) -> None:
    with pytest.raises(SourceError, match="there is no folder"):
        ImageFolderDataset(path=f"{server.address}/cats").open()
    (server.folder / "empty").mkdir()
    with pytest.raises(SourceError, match="there is no picture in"):
        ImageFolderDataset(path=f"{server.address}/empty").open()
