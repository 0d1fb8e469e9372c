// Links the table of a graph's nodes, the drawing of edges, and what is said of a node. `models` are
// bokeh's, `data` what stands behind them; both come from features/graph_page.py.

function linkGraph(models, data) {
  const { nodes, shown, search, kind, table, spots, strokes, columns, drawing, about, status } = models;
  const { edges, paths, tokens } = data;
  const count = data.name.length, MOST = 60, LISTED = 14;
  const into = Array.from({ length: count }, () => []), out = Array.from({ length: count }, () => []);
  for (let e = 0; e < edges.weight.length; e++) {
    into[edges.target[e]].push(e);
    out[edges.source[e]].push(e);
  }
  const size = (e) => Math.abs(edges.weight[e]);
  for (const list of [...into, ...out]) list.sort((a, b) => size(b) - size(a));
  const number = (value) => Number(value.toPrecision(5)).toString();
  const signed = (value) => `<span class="${value < 0 ? "minus" : "plus"}">${number(value)}</span>`;
  const text = (n) => data.position[n] < 0 ? "" : tokens[data.position[n]];

  // --- where nodes stand: their token and layer, side by side where there are several ---
  const x = new Float64Array(count), y = Float64Array.from(data.level);
  const cells = new Map();
  for (let n = 0; n < count; n++) {
    const key = `${data.position[n]} ${data.level[n]}`;
    cells.set(key, [...(cells.get(key) ?? []), n]);
  }
  for (const group of cells.values()) group.forEach((n, place) => {
    const column = data.position[n] < 0 ? -1.5 : data.position[n];
    x[n] = column + (group.length > 1 ? 0.8 * (place / (group.length - 1) - 0.5) : 0);
  });

  let ready = false; // nothing is written until what the address said is read
  const chosen = () => nodes.selected.indices.at(-1);

  function draw() {
    const n = chosen();
    const drawn = n === undefined ? data.first.slice(0, MOST)
      : [...into[n].slice(0, MOST), ...out[n].slice(0, MOST)];
    const largest = drawn.reduce((most, e) => Math.max(most, size(e)), 0) || 1;
    const found = { xs: [], ys: [], colour: [], width: [], dash: [], said: [], x: [], y: [], mark: [] };
    for (const e of drawn) {
      const [from, to, weight] = [edges.source[e], edges.target[e], edges.weight[e]];
      found.xs.push([x[from], x[to]]);
      found.ys.push([y[from], y[to]]);
      found.colour.push(weight < 0 ? data.colours.minus : data.colours.plus);
      found.dash.push(weight < 0 ? "10 5" : "solid");
      found.width.push(0.7 + 6 * size(e) / largest);
      found.said.push(`${data.name[from]} → ${data.name[to]}: ${number(weight)}`);
      found.x.push((x[from] + x[to]) / 2);
      found.y.push((y[from] + y[to]) / 2);
      found.mark.push(size(e) >= 0.2 * largest ? (weight < 0 ? "−" : "+") : "");
    }
    strokes.data = found;
    const lit = new Set(drawn.flatMap((e) => [edges.source[e], edges.target[e]]));
    if (n !== undefined) lit.add(n);
    spots.data = { ...spots.data, x: Array.from(x), y: Array.from(y),
      alpha: Array.from(x, (_, k) => lit.has(k) ? 1 : 0.25),
      width: Array.from(x, (_, k) => k === n ? 3 : 1) };
    drawing.title.text = n === undefined ? `The ${grouped(drawn.length)} edges of most influence`
      : `The largest edges into and out of ${data.name[n]}`;
  }

  function carried(e) { // the head paths of an edge, where they are in the page
    const found = paths[`${edges.source[e]} ${edges.target[e]}`];
    if (!found) return "";
    const parts = found.rows.map(([label, value]) => `${mono(label)} ${signed(value)}`);
    const more = BigInt(found.count) - BigInt(found.rows.length);
    if (more > 0n && (found.bound === null || found.bound > 1e-9 * size(e)))
      parts.push(`${grouped(more)} more ${signed(found.remainder)}, each at most ${
        upper(found.bound)}`);
    return `<span class="quiet">by</span> ${parts.join(", ")}`;
  }

  function listed(title, list, end) {
    if (!list.length) return "";
    const body = list.slice(0, LISTED).map((e) => line([[mono(data.name[edges[end][e]])],
      [mono(text(edges[end][e]))], [signed(edges.weight[e]), 1], [carried(e)]])).join("");
    return `<h2>${title}</h2><table>${body}`;
  }

  function describe() {
    const n = chosen();
    if (n === undefined) {
      about.text = '<p class="quiet">Select a node to see what it reads and who reads it.</p>';
      return;
    }
    const facts = [["is", escaped(data.kind[n])], ["token", mono(text(n))],
      ["activation", data.activation[n] === null ? "" : number(data.activation[n])],
      ["influence", number(data.influence[n])]].filter((each) => each[1])
      .map(([label, said]) => `<dt>${label}</dt><dd>${said}</dd>`).join("");
    let read = "";
    if (data.value[n] !== null) {
      const own = into[n], rest = own.slice(LISTED).reduce((sum, e) => sum + edges.weight[e], 0);
      const left = own.length - Math.min(own.length, LISTED);
      const closing = [
        ...(left ? [["not listed", rest, `${grouped(left)} edges of at most ${upper(size(own[LISTED]))}`]] : []),
        ...(data.lost[n] ? [["remainder", data.lost[n],
          data.whole ? "edges that were pruned" : "edges that are not in this page"]] : []),
        ["value", data.value[n], data.kind[n] === "logit" ? "the logit less the vocabulary mean"
          : "its pre-activation"],
        ["gap", data.gap[n], `rounding allows ${data.bound[n].toExponential(1)}`],
      ].map(([label, value, said]) => line([[`<b>${label}</b>`], [""], [signed(value), 1], [escaped(said)]]));
      read = (listed("Reads", own, "source") || "<h2>Reads</h2><table>") + closing.join("") + "</table>";
    }
    const written = listed("Is read by", out[n], "target");
    about.text = `<p><b>${mono(data.name[n])}</b></p><dl>${facts}</dl>${read}${written}${written ? "</table>" : ""}`;
  }

  function nodeChosen() {
    draw();
    describe();
    address.write({ node: chosen() === undefined ? "" : data.name[chosen()] });
  }

  function find() {
    const wanted = search.value.toLowerCase();
    const found = [];
    for (let n = 0; n < count; n++)
      if ((!kind.value || data.kind[n] === kind.value)
          && `${data.name[n]}\n${text(n)}`.toLowerCase().includes(wanted)) found.push(n);
    shown.indices = found;
    status.text = `<p class="quiet">${grouped(found.length)} of ${grouped(count)} nodes shown.</p>`;
    if (ready) address.write({ nodes: search.value, nodeKind: kind.value });
  }

  columns.data = { x: tokens.map((_, n) => n), y: tokens.map(() => -0.25),
    text: tokens.map((each, n) => `${shortened(each)} ${n}`) };
  search.properties.value.change.connect(find);
  kind.properties.value.change.connect(find);
  nodes.selected.properties.indices.change.connect(nodeChosen);
  spots.selected.properties.indices.change.connect(() => { // a node that was clicked in the drawing
    const [n] = spots.selected.indices;
    if (n !== undefined) nodes.selected.indices = [n];
    else if (nodes.selected.indices.length) nodes.selected.indices = [];
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    search.value = kind.value = "";
    nodes.selected.indices = [];
  }, true);
  letTabPass(table);
  const said = address.read(), at = data.name.indexOf(said.get("node") ?? "");
  search.value = said.get("nodes") ?? "";
  if (kind.options.some(([each]) => each === said.get("nodeKind"))) kind.value = said.get("nodeKind");
  find();
  sortGrid(table, "-influence");
  ready = true;
  nodes.selected.indices = at < 0 ? [] : [at];
  nodeChosen();
}
