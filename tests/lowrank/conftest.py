"""Settings for these tests alone."""

from hypothesis import settings

# a first contraction imports opt_einsum, and time on a shared machine proves nothing
settings.register_profile("lowrank", parent=settings.default, deadline=None)
settings.load_profile("lowrank")
