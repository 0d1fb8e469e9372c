"""The scripts here need torch, TransformerLens and circuit-tracer; the tests do not."""

collect_ignore = ["make.py", "replacement.py", "time_circuit_tracer.py"]
