// Links the views of an explorer with each other. `models` are bokeh's, `data` what stands behind
// them; both come from explorer.py. Texts of tokens and paths are written letter by letter.

const { rows, shown, table, filters, keep, kept, status, detail, drawing } = models;
const { formulas, moves, tokens } = data;
const MOST_DRAWN = 30, FEW_COLUMNS = 14, UNDRAWN = 5;

// --- texts ---------------------------------------------------------------------------------------

function written(value) { // as the printed table writes it
  if (data.decimals === null) return value ? value.toExponential(4) : "0";
  const least = 0.5 * 10 ** -data.decimals;
  return value && Math.abs(value) <= least ? value.toExponential(1) : value.toFixed(data.decimals);
}
const signed = (value) => `<span class="${value < 0 ? "minus" : "plus"}">${written(value)}</span>`;
const share = (value) => data.dense ? value / data.dense : null;
const named = (place) => `${closed(tokens[place])} @${place}`;
function formula(text) { // W_OV^L1H0 with its index and its head set low and high
  return escaped(text).replace(/([A-Z])_(\w+)/g, "$1<sub>$2</sub>")
    .replace(/\^([A-Z0-9]+)/g, "<sup>$1</sup>");
}

// --- what follows from the rows ------------------------------------------------------------------

const value = rows.data.value, path = rows.data.path, at = rows.data.at;
const count = value.length;
const steps = Array.from(path, (text) => text.split(" > "));
const order = steps.map((each) => each.length - 1);
const running = new Float64Array(count), sizes = new Float64Array(count);
for (let n = 0, sum = 0, size = 0; n < count; n++) {
  running[n] = sum += value[n];
  sizes[n] = size += Math.abs(value[n]);
}
const place = new Map(Array.from(path, (text, n) => [text, n]));
const all = count ? sizes[count - 1] : 0;
rows.data = {
  ...rows.data, order, running,
  kind: Array.from(rows.data.kinds, (n) => data.kinds[n]),
  number: Array.from(rows.data.certain, (_, n) => n + 1),
  rank: Array.from(rows.data.certain, (certain, n) => `${n + 1}${certain ? "" : "?"}`),
  share: Array.from(value, (each) => share(each) ?? NaN),
  source: Array.from(at, (each) => each < 0 ? "" : named(each)),
};

// --- the page's address --------------------------------------------------------------------------

const { head: through, ...others } = filters;
const CHOICES = { ...others, through, keep, head: models.head_head, key: models.head_key,
  over: models.head_over, sort: models.sort };
let initial = {}; // what the page shows by itself
let settled = false; // nothing is written until what the address said is read

function remember() {
  if (!settled) return;
  const paths = rows.selected.indices.slice(0, 200).map((n) => n + 1).join(",");
  const changed = ([name, it]) => [name, it.value === initial[name] ? "" : it.value];
  address.write({ ...Object.fromEntries(Object.entries(CHOICES).map(changed)), paths });
}

function recall() {
  const said = address.read();
  const set = (it, text) => {
    const options = (it.options ?? []).map((each) => Array.isArray(each) ? each[0] : each);
    if (text !== null && (!options.length || options.includes(text))) it.value = text;
  };
  headChosen();
  initial = Object.fromEntries(Object.entries(CHOICES).map(([name, it]) => [name, it.value]));
  for (const [name, it] of Object.entries(CHOICES)) if (it !== keep) set(it, said.get(name));
  const top = parseFloat(said.get("keep"));
  if (top >= 0 && top <= 100) keep.value = top;
  const chosen = (said.get("paths") ?? "").split(",").map(Number);
  rows.selected.indices = chosen.filter((n) => Number.isInteger(n) && n >= 1 && n <= count)
    .map((n) => n - 1);
}

// --- which rows are shown ------------------------------------------------------------------------

let kept_ = count; // the first rows, that the slider leaves

function keepChosen() {
  const goal = keep.value / 100 * all;
  kept_ = 0;
  while (kept_ < count && (keep.value >= 100 || sizes[kept_] <= goal * (1 + 1e-12))) kept_++;
  const sum = kept_ ? running[kept_ - 1] : 0;
  const rest = data.remainder + (data.listed - sum), more = count - kept_;
  const outside = data.outside ? [["outside the query", data.outside, ""]] : [];
  const parts = [
    ["kept", sum, `${grouped(kept_)} of ${grouped(count)} listed paths`],
    ["remainder", rest, `${grouped(unlistedCount(more))} paths${unlisted(more)}`],
    ...outside, ["dense", data.dense, "the model's own forward pass"]];
  kept.text = `<table>${parts.map(([label, number, remark]) => line([[`<b>${label}</b>`],
    [signed(number), 1], [percent(share(number)), 1], [escaped(remark)]])).join("")}</table>`;
  filterChosen();
}

const unlistedCount = (more) => BigInt(data.unlisted) + BigInt(more);

function unlisted(more) { // what is known of the paths that are not kept
  if (!unlistedCount(more)) return "";
  if (data.bound === null) return ", of unknown size";
  const bound = Math.max(data.bound, more ? Math.abs(value[kept_]) : 0);
  const said = `, each of at most ${upper(bound)}`;
  if (data.max_order === null || data.longer === 0) return said;
  const longer = data.longer === null ? "longer ones were not looked at"
    : `longer ones of at most ${upper(Math.max(data.longer, 0))}`;
  return `${said} up to order ${data.max_order}; ${longer}`;
}

function tests() {
  const made = [], of = (name) => filters[name].value;
  if (of("query").trim()) {
    const matches = compileQuery(of("query"), data.network);
    made.push((n) => matches(path[n]));
  }
  if (of("order")) made.push((n) => order[n] === Number(of("order")));
  if (of("kind")) made.push((n) => rows.data.kind[n] === of("kind"));
  if (of("head")) made.push((n) => steps[n].indexOf(of("head")) > 0);
  if (of("sign")) made.push((n) => of("sign") === "+" ? value[n] > 0 : value[n] < 0);
  if (of("source")) made.push((n) => at[n] === Number(of("source")));
  return made;
}

function filterChosen() {
  let made = [], fault = "";
  try {
    made = tests();
  } catch (error) {
    fault = error.message;
  }
  const found = [];
  for (let n = 0; n < kept_; n++) if (made.every((test) => test(n))) found.push(n);
  shown.indices = found;
  const sum = found.reduce((total, n) => total + value[n], 0);
  const said = `${grouped(found.length)} of ${grouped(count)} paths shown, adding up to ${written(sum)}`;
  status.text = fault ? `<p class="bad" role="alert">${mono(fault)}</p>`
    : `<p class="quiet">${said} (${percent(share(sum))} of the dense value).</p>`;
  pathsChosen();
}

// --- the selected paths --------------------------------------------------------------------------

let last, before = []; // the path that was selected last, and what was selected before it

function pathsChosen() {
  const chosen = rows.selected.indices;
  const far = (one, other) => Math.abs(other - (last ?? other)) > Math.abs(one - (last ?? one));
  const added = chosen.filter((n) => !before.includes(n));
  if (added.length) last = added.reduce((one, other) => far(one, other) ? other : one);
  else if (!chosen.includes(last)) last = chosen.at(-1);
  before = [...chosen];
  const some = chosen.length ? chosen : shown.indices.slice(0, UNDRAWN);
  detail.text = chosen.length ? described(chosen) : count
    ? '<p class="quiet">Select a path to follow it.</p>' : '<p class="quiet">No path is listed.</p>';
  draw(some, chosen.length > 0);
  remember();
}

function described(chosen) {
  const n = last, value_ = value[n];
  const several = chosen.length > 1 ? `<p>${grouped(chosen.length)} paths, together ${signed(
    chosen.reduce((sum, each) => sum + value[each], 0))}. The last one:</p>` : "";
  const facts = [
    ["adds", `${signed(value_)} (${percent(share(value_))} of the dense value)`],
    ["is", `${escaped(rows.data.kind[n])}, order ${order[n]}, rank ${escaped(rows.data.rank[n])}`],
    ["between positions", `<span class="formula">${formula(words(n)[0])}</span>`],
    ["in the stream", `<span class="formula">${formula(words(n)[1])}</span>`],
    ["remainder after it", `${signed(data.remainder + (data.listed - running[n]))}, when it is the last one listed`],
  ].map(([label, text]) => `<dt>${label}</dt><dd>${text}</dd>`).join("");
  return `${several}<p><b>${mono(path[n])}</b></p><dl>${facts}</dl>${starts(n)}${carriers(n)}${neighbours(n)}`;
}

function words(n) { // position word and linear word, the last map first
  const [source, ...components] = steps[n];
  const [position, linear] = formulas.sources[source];
  if (!components.length) return [position, linear];
  const parts = components.reverse().map((label) =>
    formulas.components[/[A-Z](?=\d*$)/.exec(label)[0]].map((each) => each.replaceAll("@", label)));
  const [last, ...first] = linear.split(" ").reverse();
  return [parts.map((each) => each[0]).join(" "),
    [...first.reverse(), ...parts.map((each) => each[1]), last].join(" ")];
}

function* parts(n) {
  for (let k = moves.first[n]; k < moves.first[n + 1]; k++)
    yield { step: moves.step[k], start: moves.start[k], end: moves.end[k], value: moves.value[k] };
}

function starts(n) {
  const found = [...parts(n)].filter((each) => each.step === 0);
  if (!found.length) return "";
  const largest = Math.abs(found[0].value);
  const bars = found.slice(0, 6).map((each) => line([[mono(named(each.start))],
    [signed(each.value), 1],
    [`<span class="bar ${each.value < 0 ? "minus" : ""}" style="width:${
      Math.round(100 * Math.abs(each.value) / largest)}px"></span>`]])).join("");
  const rest = value[n] - found.slice(0, 6).reduce((sum, each) => sum + each.value, 0);
  return `<h2>Starts at</h2><table>${bars}${line([["other tokens"], [signed(rest), 1]])}</table>`;
}

function carriers(n) { // what of each step is drawn: the whole step is the path's value
  const drawn = (step) => [...parts(n)].reduce((sum, each) => each.step === step ? sum + each.value : sum, 0);
  const body = steps[n].slice(1).map((label, k) => line([[mono(label)], [signed(drawn(k + 1)), 1],
    [signed(value[n] - drawn(k + 1)), 1]])).join("");
  return !body || n >= moves.drawn ? "" : `<h2>Moves</h2><table><tr><th>by</th><th class="n">drawn</th>
    <th class="n">too small to draw</th></tr>${body}</table>`;
}

function neighbours(n) {
  const [source, ...components] = steps[n];
  const shorter = new Set(components.map((_, left) =>
    [source, ...components.filter((_, k) => k !== left)].join(" > ")));
  const longer = [];
  for (let k = 0; k < count && longer.length < 5; k++)
    if (order[k] === order[n] + 1 && isOneShorter(steps[n], steps[k])) longer.push(path[k]);
  const neighbour = (label) => {
    const k = place.get(label), near = data.nearby[label];
    const [number, remark] = k !== undefined ? [signed(value[k]), `rank ${rows.data.rank[k]}`]
      : near !== undefined ? [signed(near), "not listed"] : ["", "not listed"];
    return line([[mono(label)], [number, 1], [escaped(remark)]]);
  };
  const block = (title, labels) => labels.length
    ? `<h2>${title}</h2><table>${labels.map(neighbour).join("")}</table>` : "";
  return block("One component shorter", [...shorter]) + block("One longer, of those listed", longer);
}

function isOneShorter(short, long) { // whether `short` is `long` with one component left out
  let skipped = 0;
  for (let k = 0; k < long.length; k++) if (short[k - skipped] !== long[k] && ++skipped > 1) return false;
  return short[0] === long[0];
}

// --- the drawing ---------------------------------------------------------------------------------

function draw(some, isChosen) {
  const drawn = some.filter((n) => n < moves.drawn).slice(0, MOST_DRAWN);
  // Paths that pass the same place stand side by side.
  const lane = Math.min(0.3, 0.8 / drawn.length);
  const pieces = drawn.flatMap((n, k) => [...strokes(n)].map((each) =>
    ({ ...each, aside: (k - (drawn.length - 1) / 2) * lane })));
  const used = new Set([data.position, ...pieces.flatMap((each) => [each.start, each.end])]);
  const whole = tokens.length <= data.columns;
  const columns = whole ? tokens.map((_, n) => n) : [...used].sort((a, b) => a - b);
  const column = new Map(columns.map((n, x) => [n, x]));
  const largest = pieces.reduce((most, each) => Math.max(most, Math.abs(each.value)), 0) || 1;
  const out = { xs: [], ys: [], colour: [], width: [], dash: [], path: [], said: [], x: [], y: [],
    mark: [] };
  for (const { n, start, end, low, high, value: carried, label, aside } of pieces) {
    const [from, to] = [column.get(start) + aside, column.get(end) + aside], bend = Math.max(low, high - 0.75);
    out.xs.push([from, from, to]);
    out.ys.push([low, bend, high]);
    out.colour.push(carried < 0 ? data.colours.minus : data.colours.plus);
    out.width.push(1 + (drawn.length > 8 ? 5 : 9) * Math.abs(carried) / largest);
    out.dash.push(carried < 0 ? "10 5" : "solid");
    out.path.push(path[n]);
    out.said.push(`${path[n]}; ${label}: ${named(start)} → ${named(end)}, ${written(carried)}`);
    out.x.push(to); // one mark a path, where it comes to the logits
    out.y.push(high - 0.3);
    out.mark.push(high < data.top ? "" : carried < 0 ? "−" : "+");
  }
  models.lines.data = out;
  const spots = new Map();
  for (const { end, high, label, aside } of pieces) {
    const key = `${end} ${high}`, found = spots.get(key) ?? { names: new Set(), x: new Set(), end };
    found.names.add(label);
    found.x.add(column.get(end) + aside);
    spots.set(key, { ...found, y: high });
  }
  const wide = Math.max(columns.length, FEW_COLUMNS);
  const placed = [...spots.values()].map((it) => ({ ...it, names: [...it.names], x: [...it.x] }));
  const named_ = (names) => names.length > 3 ? `${names.slice(0, 3).join("\n")}\n…` : names.join("\n");
  const isRight = (it) => column.get(it.end) > 0.75 * wide; // its names go to the left
  models.points.data = { x: placed.flatMap((it) => it.x), y: placed.flatMap((it) => it.x.map(() => it.y)) };
  models.labels.data = { y: placed.map((it) => it.y), text: placed.map((it) => named_(it.names)),
    x: placed.map((it) => isRight(it) ? Math.min(...it.x) - 0.2 : Math.max(...it.x) + 0.2),
    align: placed.map((it) => isRight(it) ? "right" : "left") };
  models.tokens.data = { x: columns.map((_, x) => x), y: columns.map(() => -0.12),
    text: columns.map((n) => `${shortened(tokens[n])} ${n}`) };
  drawing.x_range.setv({ start: -0.7, end: wide + 0.2 });
  const left = some.length - drawn.length;
  const number = drawn.length === 1 ? "" : ` ${grouped(drawn.length)}`;
  const which = isChosen ? `${number} selected`.trim() : `first${number}`;
  const scale = drawn.length ? `; the widest stroke carries ${written(largest)}` : "";
  drawing.title.text = !drawn.length ? "No path is drawn" : `The ${which} path${drawn.length === 1 ? "" : "s"}: where ${
    drawn.length === 1 ? "it starts, what moves it" : "they start, what moves them"} where${scale}`
    + (left > 0 ? `; ${grouped(left)} more are not drawn` : "")
    + (whole || !drawn.length ? "" : "; other tokens are left out");
}

function* strokes(n) {
  const [source, ...components] = steps[n], found = [...parts(n)];
  if (!found.length) return;
  const level = [data.level[source], ...components.map((label) => data.level[label])];
  for (const each of found) {
    if (each.step === 0 && components.length) continue; // seen in the first move
    const low = level[Math.max(each.step - 1, 0)];
    const high = each.step === 0 ? data.top : level[each.step];
    yield { n, ...each, low, high, label: each.step === 0 ? "logits" : components[each.step - 1] };
  }
  if (components.length) yield { n, start: data.position, end: data.position, value: value[n],
    low: level[level.length - 1], high: data.top, label: "logits" };
}

// --- heads ---------------------------------------------------------------------------------------

const heads = data.heads;

function headChosen() {
  const head = heads[models.head_head.value];
  if (!head) return;
  const size = tokens.length;
  models.head_cells.data = { x: Array.from(head.key), y: Array.from(head.query, (q) => -q),
    weight: Array.from(head.weight), from: Array.from(head.key, named),
    to: Array.from(head.query, named) };
  const every = Math.ceil(size / data.columns); // of many tokens, every so many are named
  const places = tokens.map((_, n) => n).filter((n) => n % every === 0);
  const names = places.map((n) => `${shortened(tokens[n])} ${n}`);
  models.head_names.data = {
    x: [...places, ...places.map(() => -0.8)], y: [...places.map(() => 0.8), ...places.map((n) => -n)],
    text: [...names, ...names], angle: [...names.map(() => 1.2), ...names.map(() => 0)],
    align: [...names.map(() => "left"), ...names.map(() => "right")] };
  const keys = [...new Set(head.whys.flatMap((why) => [why.key, why.over]))].filter((k) => k !== null);
  const options = keys.map((key) => [String(key), named(key)]);
  models.head_key.options = options;
  models.head_key.value = options[0]?.[0] ?? "";
  keyChosen();
}

function keyChosen() { // the other keys that there is an expansion for
  const head = heads[models.head_head.value], key = models.head_key.value;
  const others = models.head_key.options.filter(([place]) => place !== key);
  const capped = head.whys.length > 0 && head.whys.every((why) => why.over === null);
  models.head_over.options = capped ? [] : others;
  if (capped) models.head_over.value = "";
  else if (!others.some(([place]) => place === models.head_over.value))
    models.head_over.value = others[0]?.[0] ?? "";
  whyChosen();
}

function tapped() {
  const head = heads[models.head_head.value], [key] = models.head_tapped.data.x;
  const [query] = models.head_tapped.data.y;
  if (head?.whys.some((why) => why.query === query)
      && models.head_key.options.some(([place]) => Number(place) === key))
    models.head_key.value = String(key);
  else looks(query);
}

function looks(query) { // what a query looks at, in words
  const head = heads[models.head_head.value];
  const found = [];
  for (let k = 0; k < head.query.length; k++)
    if (head.query[k] === query) found.push([head.key[k], head.weight[k]]);
  found.sort((one, other) => other[1] - one[1]);
  const said = found.slice(0, 5).map(([key, weight]) => `${mono(named(key))} ${weight.toFixed(3)}`);
  const through = order.reduce((total, _, n) =>
    steps[n].indexOf(models.head_head.value) > 0 ? total + 1 : total, 0);
  models.head_about.text = `<p>All paths through <b>${escaped(models.head_head.value)}</b> add ${
    signed(head.total)} (${percent(share(head.total))} of the dense value); ${counted(through, "listed path")}
    lead${through === 1 ? "s" : ""} through it.</p>${query === undefined || !found.length ? ""
    : `<p>From ${mono(named(query))} it looks at ${said.join(", ")}.</p>`}
    <p class="quiet">Weights below ${head.least} are left out.</p>`;
}

function whyChosen() {
  const head = heads[models.head_head.value];
  const key = Number(models.head_key.value), over = models.head_over.value;
  const other = over === "" ? null : Number(over);
  const found = head.whys.find((why) => (why.key === key && why.over === other)
    || (why.key === other && why.over === key));
  looks(found?.query ?? head.whys[0]?.query);
  models.head_why.text = found ? explained(found, found.key === key ? 1 : -1)
    : '<p class="quiet">Why it looks there is not in this page; run.why(head, query, key) says it.</p>';
  const spots = found ? [[key, found.query, data.colours.plus],
    ...(other === null ? [] : [[other, found.query, data.colours.minus]])] : [];
  models.head_spots.data = { x: spots.map((s) => s[0]), y: spots.map((s) => -s[1]),
    colour: spots.map((s) => s[2]), width: spots.map(() => 1), height: spots.map(() => 1) };
  remember();
}

function explained(why, sign) {
  const [first, second] = sign > 0 ? [why.key, why.over] : [why.over, why.key];
  const [one, two] = sign > 0 ? [why.attention, why.attention_over] : [why.attention_over, why.attention];
  const what = second === null
    ? `the score of ${mono(named(first))}, which gets ${one.toFixed(4)}`
    : `log of how many times more attention ${mono(named(first))} gets (${one.toFixed(4)}) than ${
      mono(named(second))} (${two.toFixed(4)})`;
  const listed = why.rows.map(([query, key, composition, number]) => line([[mono(query)], [mono(key)],
    [escaped(composition)], [signed(sign * number), 1]])).join("");
  const closing = [
    ["remainder", why.remainder, counted(BigInt(why.count), "pair")],
    ...(why.alibi === null ? [] : [["alibi", why.alibi, "what the distance adds"]]),
    ["score", why.dense, "the model's own"],
    ...why.sums.map(([name, number, pairs]) =>
      [name, number, `${counted(BigInt(pairs), "pair")}, composed on ${name === "none" ? "neither" : name} side`
        .replace("on both side", "on both sides")]),
  ].map(([label, number, remark]) => line([[`<b>${label}</b>`], [remark], [""],
    [signed(sign * number), 1]])).join("");
  const claim = !BigInt(why.count) ? "Complete: no pair is left out." : `${
    why.certified ? "Certified" : "Stopped early"}: each unlisted pair has at most ${upper(why.bound)}.`;
  return `<p>From ${mono(named(why.query))}: ${what}.</p><table><tr><th>path to the query</th>
    <th>path to the key</th><th>composition</th><th class="n">adds</th></tr>${listed}${closing}</table>
    <p class="${why.certified ? "good" : "bad"}">${claim}</p>`;
}

// --- copying, keys, and the links ----------------------------------------------------------------

function csv() {
  const quoted = (text) => /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const chosen = rows.selected.indices;
  const some = chosen.length ? [...chosen].sort((a, b) => a - b) : shown.indices;
  const head = "rank,path,order,kind,value,share,running,source_token,source_position";
  return [head, ...some.map((n) => [rows.data.rank[n], path[n], order[n], rows.data.kind[n], value[n],
    share(value[n]) ?? "", running[n], at[n] < 0 ? "" : tokens[at[n]], at[n] < 0 ? "" : at[n]]
    .map((each) => quoted(String(each))).join(","))].join("\n") + "\n";
}

async function copy() {
  const text = csv(), count_ = counted(text.split("\n").length - 2, "path");
  status.text = `<p class="quiet">${await copied(text) ? `Copied ${count_} as CSV.`
    : "The browser does not let this page copy."}</p>`;
}

function clear() {
  for (const it of Object.values(filters)) it.value = "";
  keep.value = 100;
  models.sort.value = "";
  rows.selected.indices = [];
}

// In the order in which the table shows them, sorted by whichever column.
function inOrder() {
  const items = viewOf(table)?.data?.index;
  return items && items.length === shown.indices.length ? Array.from(items) : shown.indices;
}

function move(by, extend) {
  const list = inOrder(), chosen = rows.selected.indices;
  if (!list.length) return;
  const now = chosen.length ? list.indexOf(last) : (by > 0 ? -1 : list.length);
  const next = list[Math.min(Math.max(now + by, 0), list.length - 1)];
  rows.selected.indices = extend ? [...new Set([...chosen.filter((n) => n !== next), next])] : [next];
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") clear();
  // Whatever else has the focus knows its own keys.
  const free = event.composedPath()[0] === document.body || isWithin(event, table);
  if (!free || event.ctrlKey || event.metaKey || event.altKey) return;
  const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
  if (by) move(by, event.shiftKey);
  if (event.key === "/") viewOf(filters.query)?.input_el?.focus();
  if (!by && event.key !== "/") return;
  event.preventDefault();
  event.stopImmediatePropagation();
}, true);

const on = (model, property, then) => model.properties[property].change.connect(then);
for (const it of Object.values(filters)) on(it, "value", filterChosen);
on(keep, "value", keepChosen);
on(rows.selected, "indices", pathsChosen);
on(models.head_head, "value", () => { headChosen(); remember(); });
on(models.head_key, "value", keyChosen);
on(models.head_over, "value", whyChosen);
on(models.head_tapped, "data", tapped);
models.copy.on_event?.("button_click", copy);
models.clear.on_event?.("button_click", clear);
on(models.sort, "value", () => { sortGrid(table, models.sort.value); remember(); });
onSorted(table, (said) => { if (models.sort.options.some(([each]) => each === said)) models.sort.value = said; });
letTabPass(table);
recall(); // after the links: a head that is set has its keys at once
keepChosen();
settled = true;
if (models.sort.value) sortGrid(table, models.sort.value);
remember(); // what the address said and there is not is dropped
