"""What a table says of the parts that are no sums: what its MLPs are, and a cap on the logits."""

from __future__ import annotations

from pathexpand.errors import PathExpandError
from pathexpand.table.sheet import Line

# What `load(mlp=…)` makes of MLPs, as a table says it.
_MLPS = {
    "source": "each MLP's output is a source",
    "frozen": "each MLP whole, its gates held fixed",
    "neurons": "neuron by neuron",
}


def check_held(mlps: str | None, soft_cap: float | None = None) -> None:
    """Refuse what MLPs cannot be, and a cap that is not above 0; raises `PathExpandError`.

    >>> check_held("neurons", 30.0)
    >>> check_held("neuron")
    Traceback (most recent call last):
    ...
    pathexpand.errors.PathExpandError: table mlps: wanted source, frozen, neurons or none, got
    'neuron'
    """
    if mlps is not None and (not isinstance(mlps, str) or mlps not in _MLPS):
        wanted = f"{', '.join(_MLPS)} or none"
        raise PathExpandError("table mlps", wanted=wanted, got=repr(mlps)[:40])
    if soft_cap is not None and not soft_cap > 0:
        raise PathExpandError(
            "table soft cap", wanted="a number above 0, or none", got=repr(soft_cap)[:40]
        )


def mlps_line(mlps: str | None) -> tuple[Line, ...]:
    """Give the line that says what MLPs are in a path, if the model has some.

    >>> [line.text for line in mlps_line("neurons")], mlps_line(None)
    (['neuron by neuron'], ())
    """
    return () if mlps is None else (Line("mlps", _MLPS[mlps]),)


def dense_remark(passes: str, soft_cap: float | None) -> str:
    """Say what a dense value is: where logits are capped, the value before that.

    >>> dense_remark("the model's own forward pass", 30.0)
    "the model's own forward pass, before its soft cap"
    """
    return passes if soft_cap is None else f"{passes}, before its soft cap"
