// Searches and copies the rows of a plain table. `models` are bokeh's, `data.csv` the lines of the
// whole table as CSV, its closing rows too; both come from table/page.py.

const { rows, shown, search, copy, status } = models;
const columns = data.names.map((name) => Array.from(rows.data[name], String));
const count = columns.length ? columns[0].length : 0;
const texts = Array.from({ length: count }, (_, n) =>
  columns.map((column) => column[n]).join("\n").toLowerCase());

function find() {
  const wanted = search.value.toLowerCase();
  shown.indices = [...texts.keys()].filter((n) => texts[n].includes(wanted));
  say(`${shown.indices.length} of ${count} rows shown.`);
  try { // a frame in a notebook has no address of its own
    history.replaceState(null, "", search.value ? `#search=${encodeURIComponent(search.value)}` : "#");
  } catch { /* nothing to remember it in */ }
}

function say(text) {
  status.text = `<p class="quiet">${text}</p>`;
}

async function copied() {
  const chosen = [...rows.selected.indices].sort((a, b) => a - b);
  const all = !chosen.length && shown.indices.length === count;
  const some = chosen.length ? chosen : shown.indices;
  // Only the whole table is closed by its last rows.
  const lines = all ? data.csv : [data.csv[0], ...some.map((n) => data.csv[n + 1])];
  try {
    await navigator.clipboard.writeText(`${lines.join("\n")}\n`);
    say(`Copied ${some.length} rows as CSV.`);
  } catch {
    say("The browser does not let this page copy.");
  }
}

search.properties.value.change.connect(find);
copy.on_event("button_click", copied);
search.value = decodeURIComponent(/^#search=(.*)$/.exec(location.hash)?.[1] ?? "");
find();
