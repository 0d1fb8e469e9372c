"""The circuits of the paper, from weights and on a prompt: `model.circuits`, `run.scores`.

    wiring         who writes what into the stream and who reads it; virtual weights
    circuit        QK and OV circuits of heads and virtual heads, in factors
    largest        the largest entries of a matrix that is never formed
    overlap        what a reader sees of a writer; what undoes what
    skip_trigrams  source … destination → output;  bigrams: the direct path against counts
    composition    Q-, K- and V-composition beside chance (chance)
    copying        eigenvalues of OV and QK circuits
    detection      what heads attend to;  induction: induction heads from weights
    importance     nats of each order, layer and head (orders, ablation, loss, corpus)
    scores         attention scores as pairs of paths (legs, leg_tree, pairs)

Nothing is imported here: each module is imported where it is used.
"""
