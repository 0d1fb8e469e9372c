"""Two colours that colour-blind people tell apart; marks and dashes say the same without colour."""

PLUS = "#0072b2"
MINUS = "#d55e00"
MONO = "DejaVu Sans Mono, Menlo, Consolas, monospace"
