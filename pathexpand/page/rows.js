// Searches and copies the rows of a plain table. `models` are bokeh's, `data.csv` the lines of the
// whole table as CSV, its closing rows too; both come from table/page.py.

{
  const { rows, shown, search, copy, status } = models;
  const columns = data.names.map((name) => Array.from(rows.data[name], String));
  const count = columns.length ? columns[0].length : 0;
  const texts = Array.from({ length: count }, (_, n) =>
    columns.map((column) => column[n]).join("\n").toLowerCase());
  const say = (text) => { status.text = `<p class="quiet">${text}</p>`; };

  const find = () => {
    const wanted = search.value.toLowerCase();
    shown.indices = [...texts.keys()].filter((n) => texts[n].includes(wanted));
    say(`${grouped(shown.indices.length)} of ${grouped(count)} rows shown.`);
    address.write({ search: search.value });
  };

  const copyRows = async () => {
    const chosen = [...rows.selected.indices].sort((a, b) => a - b);
    const all = !chosen.length && shown.indices.length === count;
    const some = chosen.length ? chosen : shown.indices;
    // Only the whole table is closed by its last rows.
    const lines = all ? data.csv : [data.csv[0], ...some.map((n) => data.csv[n + 1])];
    say(await copied(`${lines.join("\n")}\n`) ? `Copied ${grouped(some.length)} rows as CSV.`
      : "The browser does not let this page copy.");
  };

  search.properties.value.change.connect(find);
  copy.on_event("button_click", copyRows);
  search.value = address.read().get("search") ?? "";
  find();
}
