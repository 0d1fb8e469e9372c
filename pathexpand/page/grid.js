// What bokeh's grids lack: order from outside, and a keyboard that gets past them.

const viewOf = (model) => Bokeh.index.find_one_by_id(model.id);

// Sort a grid by a field, "-field" downwards, "" as it came.
function sortGrid(model, said) {
  const view = viewOf(model), field = said.replace(/^-/, "");
  const column = view?.grid?.getColumns().find((each) => each.field === field);
  if (!view?.grid || (said && !column)) return false;
  view.grid.setSortColumns(said ? [{ columnId: column.id, sortAsc: !said.startsWith("-") }] : []);
  view.updateGrid();
  return true;
}

// Say what a grid was sorted by, whenever a heading is clicked.
function onSorted(model, then) {
  viewOf(model)?.grid?.onSort.subscribe(() => {
    const [first] = viewOf(model).grid.getSortColumns();
    const column = viewOf(model).grid.getColumns().find((each) => each.id === first?.columnId);
    then(column ? `${first.sortAsc ? "" : "-"}${column.field}` : "");
  });
}

// Tab stops once at a grid and then leaves it, rather than walk through its parts and all cells.
function letTabPass(model) {
  const view = viewOf(model);
  if (!view?.shadow_el) return;
  const [, ...others] = view.shadow_el.querySelectorAll("[tabindex]");
  for (const part of others) part.tabIndex = -1;
  view.shadow_el.addEventListener("keydown", (event) => {
    if (event.key === "Tab") event.stopImmediatePropagation();
  }, true);
}

const isWithin = (event, model) => event.composedPath().includes(viewOf(model)?.el);
