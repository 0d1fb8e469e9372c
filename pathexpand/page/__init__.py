"""Pages that open anywhere: one HTML file with all its scripts, by bokeh (the extra `report`).

document  a bokeh layout as one file that asks no network for anything
notebook  such a page inside a notebook, in a frame of its own
grid      rows with columns to sort, filter, select and copy
prose     texts on a page, letter by letter
"""
