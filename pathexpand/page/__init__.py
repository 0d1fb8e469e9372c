"""Pages that open anywhere: one HTML file with all its scripts, by bokeh (the extra `report`).

document  a bokeh layout as one file that asks no network for anything
notebook  such a page inside a notebook, in a frame of its own
script    the few scripts of our own, put together
prose     texts on a page, letter by letter
tokens    room for tokens along the foot of a drawing
colours   blue adds, orange takes away
"""
