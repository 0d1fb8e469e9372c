"""The script that writes the golden files needs torch and transformers; the tests do not."""

collect_ignore = ["make.py"]
