"""Pages that open anywhere: one HTML file with all its scripts, by bokeh (the extra `report`).

document  a bokeh layout as one file that asks no network for anything
notebook  such a page inside a notebook, in a frame of its own
paged     what has a page, for a file and for notebooks
prose     texts on a page, letter by letter
grid      rows to sort, scroll and select
drawing   strokes over tokens and levels
colours   blue adds, orange takes away
script    the few scripts of our own, put together
"""
