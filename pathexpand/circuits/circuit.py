"""QK and OV circuits: what a head looks for and what it then does, as matrices over the vocabulary.

"A Mathematical Framework for Transformer Circuits" (Elhage et al. 2021) writes them
W_Eᵀ W_QK W_E and W_U W_OV W_E. Here rows stand first: a QK circuit has a row for each query token
and a column for each key token, an OV circuit a row for each source token and a column for each
output token. Both stay factored, a head's width in the middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pathexpand.circuits.largest import (
    By,
    check_count,
    dense_rows,
    entries,
    first_of,
    largest,
    subset,
)
from pathexpand.circuits.wiring import (
    HeadWeights,
    check_chain,
    embedded,
    has_norms,
    head_weights,
    parse_head,
    turned,
    unembedded,
)
from pathexpand.errors import PathExpandError
from pathexpand.lowrank import Factored, contract
from pathexpand.model.checkpoint import Checkpoint
from pathexpand.model.shown import check_flag, shown
from pathexpand.model.tokenizer import show_token
from pathexpand.progress import watched
from pathexpand.symbolic import Head
from pathexpand.table.abstract import Tabled
from pathexpand.table.analysis_table import AnalysisTable, Field, Summary
from pathexpand.target import LogitTarget, read_target

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Kind = Literal["QK", "OV"]
Heads = str | Head | Sequence[str | Head]

_NAMES: dict[str, tuple[str, str, str]] = {
    "QK": ("query", "key", "score"),
    "OV": ("source", "output", "logit"),
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Circuit:
    """A factored matrix over the vocabulary with its meaning; made by `qk` and `ov`.

    `matrix` is (d_vocab, d_vocab) for QK, in units of the attention score, and
    (d_vocab, d_vocab_out) for OV, in logits at full attention. `name` says which heads; `claims`
    what the numbers leave out.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> ov(read_checkpoint("one-layer"), "L0H1").matrix
    Factored(1024×64 @ 64×1024)
    """

    checkpoint: Checkpoint
    kind: Kind
    name: str
    matrix: Factored
    claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a kind that there is not, and a matrix that is not over the vocabulary."""
        if self.kind not in _NAMES:
            raise PathExpandError("circuit", wanted="QK or OV", got=shown(self.kind))
        config = self.checkpoint.config
        wanted = (config.d_vocab, config.d_vocab if self.kind == "QK" else config.d_vocab_out)
        if self.matrix.shape != wanted:
            raise PathExpandError(
                f"{self.kind} circuit", wanted=f"a matrix {wanted}", got=f"{self.matrix.shape}"
            )

    def __repr__(self) -> str:
        """Name the circuit and show its factors' shapes."""
        rows, columns = self.matrix.shape
        rank = self.matrix.rank_bound
        return f"Circuit({self.kind} of {self.name}: {rows}×{rank} @ {rank}×{columns})"

    def _repr_html_(self) -> str:
        from pathexpand.table.markup import card
        from pathexpand.table.sheet import Line
        from pathexpand.table.spelling import visible

        lines = [Line(label, visible(text)) for label, text in self.about()]
        shape = f"{self.matrix.shape[0]:,} × {self.matrix.shape[1]:,}"
        row, column, value = self.names
        lines.append(Line("matrix", f"{value} by {row} and {column} token, {shape}, in factors"))
        asked = "top(k), directions(n), row(token), column(token), entry(row, column)"
        square = ", copying_score(), eigenvalues()" if self.is_square else ""
        return card(lines, f"Ask for {asked}{square}.", *self.claims)

    def entry(self, row: int | str, column: int | str) -> float:
        """Give one entry, by two tokens: ids, or texts of one token each.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> circuit = ov(read_checkpoint("one-layer"), "L0H1")
        >>> bool(np.isclose(circuit.entry(7, 9), circuit.row(7)[9]))
        True
        """
        one, other = self._row(row), self._column(column)
        return float(entries(self.matrix, np.array([one]), np.array([other]))[0])

    def row(self, token: int | str) -> Floats:
        """Give the row of one token: (columns,)."""
        out: Floats = self.matrix.left[self._row(token)] @ self.matrix.right
        return out

    def column(self, token: int | str) -> Floats:
        """Give the column of one token: (rows,)."""
        out: Floats = self.matrix.left @ self.matrix.right[:, self._column(token)]
        return out

    def dense_block(self, rows: object, columns: object) -> Floats:
        """Give the entries of some rows and columns, by their ids: (row, column), as given."""
        one = _ids(rows, self.matrix.shape[0], "rows")
        other = _ids(columns, self.matrix.shape[1], "columns")
        out: Floats = self.matrix.left[one] @ self.matrix.right[:, other]
        return out

    @watched("ranking entries")
    def top(
        self, k: int, *, by: By = "value", rows: object = None, columns: object = None
    ) -> Entries:
        """Give the k largest entries, exactly, by value or by absolute value.

        `rows` and `columns` (ids) look among these tokens alone. Of equal entries those of lower
        ids come first.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> len(ov(read_checkpoint("one-layer"), "L0H1").top(3))
        3
        """
        found = largest(self.matrix, k, by=by, rows=rows, columns=columns)
        return Entries(self, found.rows, found.columns, found.values)

    @watched("splitting the circuit")
    def directions(self, n: int, *, tokens: int = 5) -> Directions:
        """Give the n largest singular directions with the tokens at both ends of each side.

        Of the two signs of a direction the one is taken whose largest number on the side of the
        rows is positive.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> ov(read_checkpoint("one-layer"), "L0H1").directions(2).row_tokens.shape
        (2, 5)
        """
        check_count("directions", n)
        check_count("tokens", tokens)
        U, S, Vt = self.matrix.svd()
        left, right = U[:, :n].T, Vt[:n]  # (n, rows), (n, columns)
        peaks = np.take_along_axis(left, abs(left).argmax(axis=1)[:, None], axis=1)
        signs = np.where(peaks < 0, -1.0, 1.0)  # (n, 1)
        left, right = left * signs, right * signs
        energy = float(np.square(S / S[0]).sum()) if S.size and S[0] else 0.0
        return Directions(
            self,
            S[:n],
            np.square(S[:n] / S[0]) / energy if energy else np.zeros(len(S[:n])),
            *(_ends(side, tokens) for side in (left, right, -left, -right)),
        )

    def eigenvalues(self) -> npt.NDArray[np.complex128]:
        """Give the eigenvalues that can differ from zero, by the product of a head's width.

        Raises `PathExpandError` where rows and columns are not the same tokens.
        """
        self._check_square("eigenvalues")
        return self.matrix.eigenvalues()

    def copying_score(self) -> float | None:
        """Give Re Σλ / Σ|λ|, from −1 to 1: near 1 tokens raise themselves; None for no spectrum.

        The paper's summary of the eigenvalues λ. Raises `PathExpandError` where rows and columns
        are not the same tokens.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> score = ov(read_checkpoint("one-layer"), "L0H1").copying_score()
        >>> -1 <= score <= 1
        True
        """
        return eigenvalue_score(self.eigenvalues())

    def positive_diagonal(self, *, centred: bool = False) -> float:
        """Give the share of tokens whose own entry is positive, or `centred` above its row's mean.

        Raises `PathExpandError` where rows and columns are not the same tokens.
        """
        check_flag("centred", centred)
        self._check_square("diagonal")
        every = np.arange(self.matrix.shape[0])
        diagonal = entries(self.matrix, every, every)
        if centred:
            diagonal = diagonal - self.matrix.left @ self.matrix.right.mean(axis=1)
        return float(np.mean(diagonal > 0))

    @watched("passing over the circuit")
    def self_in_top(self, k: int, *, tokens: object = None) -> float:
        """Give the share of tokens that are among the k largest entries of their own row.

        Of equal entries those of lower ids count as larger. `tokens` (ids) looks at these rows
        alone. Rows go by in blocks. A constant added to a row changes nothing. Raises
        `PathExpandError` where rows and columns are not the same tokens.
        """
        check_count("top", k)
        self._check_square("own token")
        ids = subset(tokens, self.matrix.shape[0], "tokens")
        hits = 0
        for at, block in dense_rows(self.matrix, ids):
            own = ids[at]
            mine = block[np.arange(len(own)), own][:, None]  # (n, 1)
            before = np.count_nonzero(block > mine, axis=1)
            for row in np.flatnonzero(before < k):
                before[row] += np.count_nonzero(block[row, : own[row]] == mine[row])
            hits += int(np.count_nonzero(before < k))
        return hits / len(ids)

    def table(
        self,
        top: int = 20,
        *,
        by: By = "value",
        rows: object = None,
        columns: object = None,
        own_in_top: int | None = None,
    ) -> AnalysisTable:
        """Give the table of the largest entries, under it what the whole matrix is like.

        With `own_in_top` k also the share of tokens among the k largest entries of their own row,
        which takes a pass over the matrix.
        """
        return self.top(top, by=by, rows=rows, columns=columns).table(own_in_top=own_in_top)

    @property
    def names(self) -> tuple[str, str, str]:
        """What rows, columns and entries are called."""
        return _NAMES[self.kind]

    @property
    def is_square(self) -> bool:
        """Whether rows and columns are the same tokens."""
        return self.matrix.shape[0] == self.matrix.shape[1]

    def about(self) -> tuple[tuple[str, str], ...]:
        """Give the lines over a table."""
        return (
            ("model", self.checkpoint.config.model_name),
            (f"{self.kind} circuit", self.name),
            ("norm", f"{self.matrix.norm():.6g} (Frobenius, of the whole matrix)"),
        )

    def summaries(self, own_in_top: int | None = None) -> tuple[Summary, ...]:
        """Give the lines under a table."""
        lines: list[Summary] = []
        if self.is_square:
            score = self.copying_score()
            what = "copying score" if self.kind == "OV" else "matching score"
            lines.append(Summary(what, score, "Re Σλ / Σ|λ| of the eigenvalues λ"))
            share = self.positive_diagonal()
            lines.append(Summary("positive diagonal", share, "share of tokens"))
            if own_in_top is not None:
                rate = self.self_in_top(own_in_top)
                lines.append(Summary(f"own token in top {own_in_top}", rate, "share of rows"))
        return tuple(lines)

    def show(self, token: int) -> str:
        """Write one token so that a reader sees every character."""
        return show_token(self.checkpoint.tokenizer, int(token))

    def _row(self, token: int | str) -> int:
        return read_token(self.checkpoint, token, self.matrix.shape[0])

    def _column(self, token: int | str) -> int:
        return read_token(self.checkpoint, token, self.matrix.shape[1])

    def _check_square(self, what: str) -> None:
        if not self.is_square:
            raise PathExpandError(
                f"{what} of {self.kind} circuit {self.name}",
                wanted="rows and columns over the same tokens",
                got=f"{self.matrix.shape[0]} and {self.matrix.shape[1]} tokens",
            )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Entries(Tabled):
    """Entries of a circuit, largest first: `rows`, `columns` (token ids) and `values`, (k,)."""

    circuit: Circuit
    rows: Indices
    columns: Indices
    values: Floats

    def __len__(self) -> int:
        """Give the number of entries."""
        return len(self.values)

    def table(self, *, own_in_top: int | None = None) -> AnalysisTable:
        """Give the entries as a table.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> table = ov(read_checkpoint("one-layer"), "L0H1").top(2).table()
        >>> [field.name for field in table.fields]
        ['source', 'source id', 'output', 'output id', 'logit']
        """
        circuit = self.circuit
        row, column, value = circuit.names
        fields = (
            Field(row, "token"),
            Field(f"{row} id", "count", leave=2),
            Field(column, "token"),
            Field(f"{column} id", "count", leave=1),
            Field(value, "number"),
        )
        lines = zip(self.rows.tolist(), self.columns.tolist(), self.values.tolist(), strict=True)
        return AnalysisTable(
            "circuit",
            circuit.about(),
            fields,
            tuple((circuit.show(i), i, circuit.show(j), j, x) for i, j, x in lines),
            circuit.summaries(own_in_top),
            circuit.claims,
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Directions(Tabled):
    """Singular directions of a circuit, with the tokens at their ends.

    `values` (n,) are the singular values, `shares` (n,) their squares as parts of all squares.
    `row_tokens` and `column_tokens` (n, tokens) are the ids of the largest numbers of each
    direction, `row_others` and `column_others` of the smallest: rows of the one kind go with
    columns of the same kind.
    """

    circuit: Circuit
    values: Floats
    shares: Floats
    row_tokens: Indices
    column_tokens: Indices
    row_others: Indices
    column_others: Indices

    def table(self) -> AnalysisTable:
        """Give the directions as a table, two rows each: one for either end.

        >>> from pathexpand.model.checkpoint import read_checkpoint
        >>> len(ov(read_checkpoint("one-layer"), "L0H1").directions(2).table())
        4
        """
        circuit = self.circuit
        row, column, _ = circuit.names
        fields = (
            Field("direction", "count"),
            Field("end", "text"),
            Field("singular value", "number"),
            Field("share", "share", leave=1),
            Field(f"{row} tokens", "text"),
            Field(f"{column} tokens", "text"),
        )
        lines = []
        for n, (value, share) in enumerate(zip(self.values, self.shares, strict=True)):
            for end, ids in (
                ("+", (self.row_tokens[n], self.column_tokens[n])),
                ("-", (self.row_others[n], self.column_others[n])),
            ):
                texts = (" ".join(map(circuit.show, each)) for each in ids)
                lines.append((n + 1, end, float(value), float(share), *texts))
        claims = (
            "Share is the squared singular value's part of all squares. A row token's value at an "
            "end raises the column tokens at the same end and lowers those at the other.",
        )
        return AnalysisTable(
            "directions", circuit.about(), fields, tuple(lines), (), claims + circuit.claims
        )


@watched("reading the circuit")
def qk(
    checkpoint: Checkpoint,
    head: str | Head,
    *,
    query: Heads = (),
    key: Heads = (),
    offset: int | None = None,
    scaled: bool = True,
) -> Circuit:
    """Give a head's QK circuit: which key tokens each query token attends to.

    W_E W_Q R(offset) W_Kᵀ W_Eᵀ, (query token, key token), divided by the attention scale if
    `scaled`. `query` and `key` are earlier heads that the query or the key comes through
    ("L0H3", "L0H3 > L1H2"): a virtual circuit, one of the paper's A_q ⊗ A_k ⊗ W terms. Rotary
    positions need an `offset`, query minus key. Raises `PathExpandError` for heads that there are
    not or do not stand behind one another, and for rotary positions without an offset.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> qk(read_checkpoint("two-layer"), "L1H2", key="L0H3").name
    'L1H2, key through L0H3'
    """
    check_flag("scaled", scaled)
    own = parse_head(checkpoint.config, head)
    queries, keys = parse_chain(checkpoint, query), parse_chain(checkpoint, key)
    for chain in (queries, keys):
        check_chain(checkpoint, (*chain, own))
    layer = head_weights(checkpoint, own.layer)
    W_Q = turned(checkpoint, own.layer, layer.W_Q[own.index], offset)
    left = embedded(checkpoint, contract([*_ov_factors(checkpoint, queries), W_Q]))
    right = embedded(checkpoint, contract([*_ov_factors(checkpoint, keys), layer.W_K[own.index]]))
    scale = checkpoint.config.attn_scale[own.layer]
    matrix = Factored(left, right.T)  # (d_vocab, d_head) (d_head, d_vocab)
    name = own.label
    for side, chain in (("query", queries), ("key", keys)):
        name += f", {side} through {_written(chain)}" if chain else ""
    if checkpoint.config.rotary[own.layer] is not None:
        name += f", offset {offset}"
    return Circuit(
        checkpoint,
        "QK",
        name,
        matrix / scale if scaled else matrix,
        _qk_claims(checkpoint, own.layer, scaled),
    )


@watched("reading the circuit")
def ov(checkpoint: Checkpoint, heads: Heads, *, centred: bool = False) -> Circuit:
    """Give the OV circuit of a head or a virtual head: what an attended token does to the logits.

    W_E W_V W_O … W_U, (source token, output token), for one head "L0H3" or for several that pass
    the token on, "L0H3 > L1H0". `centred` takes each row's mean off, which no softmax sees. Raises
    `PathExpandError` for heads that there are not or do not stand behind one another.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> ov(read_checkpoint("two-layer"), "L0H3 > L1H0").name
    'L0H3 > L1H0'
    """
    check_flag("centred", centred)
    chain = parse_chain(checkpoint, heads)
    if not chain:
        raise PathExpandError("OV circuit", wanted="at least one head", got="none")
    check_chain(checkpoint, chain, ends=True)
    first, *others = _ov_factors(checkpoint, chain)
    left = embedded(checkpoint, first)  # (d_vocab, d_head)
    right = unembedded(checkpoint, contract(others))  # (d_head, d_vocab_out)
    if centred:
        right = right - right.mean(axis=1, keepdims=True)
    return Circuit(
        checkpoint, "OV", _written(chain), Factored(left, right), _ov_claims(checkpoint, centred)
    )


def parse_chain(checkpoint: Checkpoint, heads: Heads) -> tuple[Head, ...]:
    """Give heads in order, from text such as "L0H3 > L1H0" if need be.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> parse_chain(read_checkpoint("two-layer"), "L0H3 > L1H0")
    (Head(layer=0, index=3), Head(layer=1, index=0))
    """
    given: Iterable[str | Head]
    if not isinstance(heads, str | Head | Iterable):
        raise PathExpandError("heads", wanted='such as "L0H3 > L1H0"', got=shown(heads))
    if isinstance(heads, str):
        given = heads.split(">")
    else:
        given = (heads,) if isinstance(heads, Head) else heads
    return tuple(parse_head(checkpoint.config, each) for each in given)


def read_token(checkpoint: Checkpoint, token: int | str, count: int) -> int:
    """Give the id of one token, from its text if need be; raises `PathExpandError`.

    >>> from pathexpand.model.checkpoint import read_checkpoint
    >>> read_token(read_checkpoint("one-layer"), "id:7", 1024)
    7
    """
    if isinstance(token, str):
        found = read_target(checkpoint, token, centred=False)
        if not isinstance(found, LogitTarget):
            raise PathExpandError("token", wanted="one token", got=shown(token))
        token = found.token
    whole = isinstance(token, int | np.integer) and not isinstance(token, bool)
    if not whole or not 0 <= int(token) < count:
        raise PathExpandError("token", wanted=f"an id from 0 to {count - 1}", got=shown(token))
    return int(token)


def eigenvalue_score(values: npt.NDArray[np.complex128]) -> float | None:
    """Give Re Σλ / Σ|λ|; None where all are zero.

    >>> eigenvalue_score(np.array([1 + 3**0.5 * 1j, 1 - 3**0.5 * 1j])).__round__(12)
    0.5
    """
    total = float(abs(values).sum())
    return float(values.real.sum()) / total if total else None


def norm_claims(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Say what becomes of norms in a circuit from weights; nothing where there are none."""
    if not has_norms(checkpoint):
        return ()
    return (
        "Norms: their matrices (weights, means taken off) are folded in; their scales, which a "
        "prompt decides, are left out.",
    )


def _qk_claims(checkpoint: Checkpoint, layer: int, scaled: bool) -> tuple[str, ...]:
    config, attn = checkpoint.config, checkpoint.weights.outline(layer).attn
    scale = f"{config.attn_scale[layer]:g}"
    claims = [
        f"Scores are divided by the attention scale {scale}."
        if scaled
        else f"Scores are not divided by the attention scale {scale}.",
        "Rows of different queries cannot be compared: a softmax sees differences within a row.",
    ]
    left_out = ["positions" if checkpoint.weights.pos is not None or config.alibi else ""]
    left_out.append("biases" if attn.b_Q is not None or attn.b_K is not None else "")
    names = " and ".join(filter(None, left_out))
    if names:
        claims.append(f"What {names} add to the score is left out.")
    if config.attn_scores_soft_cap is not None:
        cap = f"{config.attn_scores_soft_cap:g}"
        claims.append(f"The model caps its scores at ±{cap}: these are before the cap.")
    return (*claims, *norm_claims(checkpoint))


def _ov_claims(checkpoint: Checkpoint, centred: bool) -> tuple[str, ...]:
    claims = ["A logit is what the source adds at full attention: times the pattern on a prompt."]
    if centred:
        claims.append("Each row's mean over the outputs is taken off.")
    cap = checkpoint.config.output_logits_soft_cap
    if cap is not None:
        claims.append(f"The model caps its logits at ±{cap:g}: these are before the cap.")
    return (*claims, *norm_claims(checkpoint))


def _ov_factors(checkpoint: Checkpoint, heads: Sequence[Head]) -> list[Array]:
    """Give W_V, W_O of each head in order."""
    factors: list[Array] = []
    for head in heads:
        layer: HeadWeights = head_weights(checkpoint, head.layer)
        factors += [layer.W_V[head.index], layer.W_O[head.index]]
    return factors


def _written(heads: Sequence[Head]) -> str:
    return " > ".join(head.label for head in heads)


def _ends(side: Floats, tokens: int) -> Indices:
    """Give the ids of the largest numbers of each direction: (n, vocabulary) to (n, tokens)."""
    k = min(tokens, side.shape[1])
    ids = [first_of(row, k) for row in side]
    return np.array(ids, dtype=np.int64).reshape(len(ids), k)


def _ids(given: object, count: int, subject: str) -> Indices:
    checked = subset(given, count, subject)
    return checked if given is None else np.atleast_1d(np.asarray(given)).astype(np.int64)
