"""Run a notebook in a kernel, as a process of its own: python run_notebook.py IN OUT FOLDER.

What the kernel's sockets warn of when they are cleaned up then stays out of the tests.
"""

import sys
from pathlib import Path

import nbformat
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from nbclient import NotebookClient

import pathexpand

SECONDS = 300  # that a cell may take

# Runs before the first cell: the package under test and no other, and no network.
FIRST = f"""
import socket, sys
sys.path.insert(0, {str(Path(pathexpand.__file__).parents[1])!r})
import pathexpand
assert pathexpand.__file__ == {pathexpand.__file__!r}, pathexpand.__file__
assert sys.executable == {sys.executable!r}, sys.executable


def _no_network(*_, **__):
    raise RuntimeError("the tutorial asks for the network")


socket.getaddrinfo = socket.socket.connect = _no_network
"""


class OwnKernel(KernelSpecManager):
    """Starts kernels by this interpreter, whatever kernels a user has installed."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())


def main(source: str, out: str, folder: str) -> None:
    notebook = nbformat.read(source, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(FIRST))
    client = NotebookClient(
        notebook,
        km=AsyncKernelManager(kernel_spec_manager=OwnKernel()),
        timeout=SECONDS,
        resources={"metadata": {"path": folder}},
    )
    client.execute()
    del notebook.cells[0]
    nbformat.write(notebook, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
