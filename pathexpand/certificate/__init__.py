"""Certificates: files that let anyone re-check a table of top paths without trusting the search.

`certify` makes one, `check_certificate` re-verifies it against a model by another route than the
search took: single paths run forward as (product of patterns) ⊗ (chain of maps), sums carried
forward from the sources, energies in the space of the stream.

>>> from pathexpand.api import load
>>> run = load("two-layer").run("to be or not to")
>>> certificate = certify(run, run.searched_paths(top=3))
>>> all(finding.holds for finding in check_certificate(certificate, run.model))
True
"""

from pathexpand.certificate.certify import certify
from pathexpand.certificate.check import check_certificate
from pathexpand.certificate.document import Certificate
from pathexpand.certificate.finding import Finding

__all__ = ["Certificate", "Finding", "certify", "check_certificate"]
