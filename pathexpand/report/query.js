// The query language of pathexpand.symbolic.query_text, in a page.
//
// compileQuery(text, network) returns a function that says whether the query matches a path of the
// network, written "embed > L0H1 > L1H0". What is no query about the network throws an Error with
// the message of Python's NotationError, less the text around the column. The message repeats what
// was typed: show it as text, never as HTML.
//
//   network = {
//     sources: ["embed", "L0bias", "b_U"],  // labels, as the network lists them
//     heads: [4, 4],                        // for each layer how many, or which: [4, [0, 3]]
//     neurons: [0, 16],                     // likewise; may be left out
//     mlps: [1, 0],                         // likewise, MLPs that are one component
//   }
//
// Names and rules are those of query_text; a test compares the two, messages included. This file is
// ASCII and has no closing tag in it, so that it can stand in any page.
function compileQuery(text, { sources, heads = [], neurons = [], mlps = [] }) {
  // --- what the network has ---
  const NAMES = { H: ["head", "heads"], N: ["neuron", "neurons"], M: ["MLP", "MLPs"] };
  const kinds = {}; // for each letter a list of [layer, indices]
  for (const [letter, layers] of Object.entries({ H: heads, N: neurons, M: mlps })) {
    const indices = (each) => (Array.isArray(each) ? each : [...Array(each).keys()]);
    const filled = layers.map((each, n) => [n, indices(each)]).filter(([, found]) => found.length);
    if (filled.length) kinds[letter] = filled;
  }
  const born = sources.map((label) => /^L(\d+)(\D+)$/.exec(label)).filter(Boolean);
  const layersWith = (ending) => born.filter((each) => each[2] === ending).map((each) => +each[1]);
  const layersOf = (letter) => (kinds[letter] ?? []).map(([layer]) => layer);
  const met = [...Object.keys(kinds).flatMap(layersOf), ...born.map((each) => +each[1])];
  const depth = 1 + Math.max(-1, ...met);
  const word = kinds.N || kinds.M ? "component" : "head";

  // --- tokens ---
  const span = String.raw`(?:\*|(?:0|[1-9]\d{0,8})(?:-(?:0|[1-9]\d{0,8}))?)`;
  const TOKEN = new RegExp(String.raw`(?<arrow>\u2192|->|>)`
    + String.raw`|(?<label>L(?<layers>${span})(?:(?<letter>[HN])(?<indices>${span})`
    + String.raw`|(?<ending>M|M?bias))(?!\w))|(?<word>L\*\w*|\w+)|(?<repetition>[?*+])`
    // What Python takes for white space; \s is not quite the same here.
    + String.raw`|(?<space>[\t-\r\x1c-\x20\x85\u2028\u2029\p{Zs}]+)|(?<other>.)`, "gsu");
  const tokens = [];
  for (const { 0: found, index: start, groups } of text.matchAll(TOKEN)) {
    const kind = Object.keys(groups).find((name) => groups[name] !== undefined);
    const end = start + found.length;
    if (kind !== "space") tokens.push({ ...groups, kind, text: found, start, end });
  }
  if (!tokens.length) {
    const remedy = "* alone asks for all paths";
    throw new Error(`query: wanted steps such as embed > * > L1H6, got nothing; ${remedy}`);
  }
  text = text.slice(0, tokens.at(-1).end);
  tokens.push({ kind: "end", text: "the end", start: text.length });
  let next = 0, deep = 0;
  const peek = () => tokens[next];
  const skip = (wanted) => peek().text === wanted && (next += 1) > 0;

  // --- longer pieces: { kind, parts } ---
  function choice(end) {
    const parts = [series()];
    while (skip("|")) parts.push(series());
    if (peek().text !== end) {
      const once = "a step is repeated by one sign right after it";
      throw wrong(peek(), `>, | or ${end}`, peek().kind === "repetition" ? once : "");
    }
    return parts.length === 1 ? parts[0] : { kind: "choice", parts };
  }
  function series() {
    const parts = [step()];
    while (peek().kind === "arrow" && (next += 1)) parts.push(step());
    return parts.length === 1 ? parts[0] : { kind: "series", parts };
  }
  function step() {
    const repeat = (part, sign) =>
      ({ kind: "repeat", parts: [part], optional: sign !== "+", again: sign !== "?" });
    const start = peek();
    if (skip("*") || skip("+")) return repeat({ kind: "component", test: () => true }, start.text);
    const part = skip("(") ? group() : single();
    const last = tokens[next - 1], sign = peek();
    // A repetition touches its step: in "(L0H1) * > L1H0" a > is more likely to be missing.
    if (sign.kind !== "repetition" || sign.start > last.end) return part;
    if (sign.text === "*" && last.kind === "label") {
      const remedy = `repeat a label as (${text.slice(start.start, sign.start)})*`;
      throw wrong(sign, "> after a label", remedy);
    }
    next += 1;
    return repeat(part, sign.text);
  }
  function group() {
    deep += 1;
    if (deep > 100) throw wrong(tokens[next - 1], "at most 100 parentheses inside each other");
    const part = choice(")");
    next += 1;
    deep -= 1;
    return part;
  }

  // --- single steps: { kind, test, at }; test takes the label of a source, or a component ---
  function single() {
    const at = peek();
    if (skip(".")) return { kind: "component", test: () => true, at };
    if (skip("any")) return { kind: "source", test: () => true, at };
    const not = skip("!");
    const wanted = not ? "a label or a set after !" : "a step such as L0H1, *, { or (";
    const { kind, test } = skip("{") ? braces() : label(wanted);
    return { kind, test: not ? (each) => !test(each) : test, at };
  }
  function braces() {
    const members = [];
    do {
      const token = peek(), member = label("a label in a set");
      members.push(member);
      if (member.kind !== members[0].kind) {
        const like = members[0].kind === "source" ? "source" : word;
        throw wrong(token, `a ${like} like the others in the set`);
      }
    } while (skip(","));
    if (!skip("}")) throw wrong(peek(), ", or } in a set");
    return { kind: members[0].kind, test: (each) => members.some(({ test }) => test(each)) };
  }
  function label(wanted) {
    const token = peek(), { kind, text } = token;
    next += 1;
    if (kind === "label") return isComponent(token) ? components(token) : sourcesOfLayers(token);
    if (sources.includes(text)) return { kind: "source", test: (each) => each === text };
    if (text === "any") throw wrong(token, "a label", "any is a step of its own");
    const remedy = "not stands at the very start, ! before a step";
    if (text === "not") throw wrong(token, "a step", remedy);
    throw wrong(token, kind === "word" ? labelsWanted() : wanted);
  }
  function range(token, text) {
    const ends = text === "*" ? [] : text.split("-").map(Number);
    if (ends[0] > ends.at(-1)) throw wrong(token, `a range that rises, not ${text}`);
    return { ends, has: (n) => !ends.length || (ends[0] <= n && n <= ends.at(-1)) };
  }
  // A whole MLP is a component or a source, as the network says.
  function isComponent(token) {
    if (token.ending !== "M") return !token.ending;
    const { has } = range(token, token.layers);
    const [inside] = layersOf("M").filter(has), [source] = layersWith("M").filter(has);
    if (inside !== undefined && source !== undefined) {
      const remedy = `L${source}M is a source, L${inside}M a component`;
      throw wrong(token, "sources or components, not both", remedy);
    }
    return "M" in kinds && source === undefined;
  }
  function components(token) {
    const letter = token.letter ?? "M", [one, many] = NAMES[letter];
    const layers = range(token, token.layers), indices = range(token, token.indices ?? "*");
    const ends = layers.ends.length + indices.ends.length;
    if (!kinds[letter] && (letter !== "H" || ends)) { // L*H* may mean none
      const whole = letter === "N" && layersWith("M").length;
      const since = whole ? "MLPs are sources here, and not taken neuron by neuron"
        : `the network has no ${many}`;
      throw wrong(token, `${labelsWanted("a source")}, since ${since}`);
    }
    if (layers.ends.some((n) => n >= depth)) {
      throw wrong(token, `layer ${numbers([...Array(depth).keys()])}`);
    }
    const inside = (kinds[letter] ?? []).filter(([layer]) => layers.has(layer));
    if (layers.ends.length && !inside.length) throw wrong(token, `a layer that has ${many}`);
    const known = new Set(inside.flatMap(([, found]) => found));
    if (!indices.ends.every((n) => known.has(n))) {
      const where = token.layers === "*" ? "any layer" : `layer ${token.layers}`;
      throw wrong(token, `${one} ${numbers([...known])} of ${where}`);
    }
    const test = (each) =>
      each.letter === letter && layers.has(each.layer) && indices.has(each.index);
    return { kind: "component", test };
  }
  function sourcesOfLayers(token) {
    const { ends, has } = range(token, token.layers), known = layersWith(token.ending);
    if (!known.length || !ends.every((n) => known.includes(n))) {
      throw wrong(token, token.ending === "M" ? labelsWanted() : sourcesWanted());
    }
    const found = known.filter(has).map((n) => `L${n}${token.ending}`);
    return { kind: "source", test: (each) => found.includes(each) };
  }

  // --- any source in front of each alternative that names none, and sources nowhere else ---
  function firstSource({ kind, parts = [], at }) {
    return kind === "source" ? at : parts.map(firstSource).find(Boolean);
  }
  function fromSource(piece) {
    const { kind, parts } = piece, named = firstSource(piece);
    if (!named) return { kind: "series", parts: [{ kind: "source", test: () => true }, piece] };
    if (kind === "choice") return { kind, parts: parts.map(fromSource) };
    if (kind === "repeat") {
      throw wrong(named, "a source once", `only ${word}s are optional or repeated`);
    }
    if (kind === "source") return piece;
    const [first, ...rest] = parts, later = rest.map(firstSource).find(Boolean);
    const remedy = `a source stands only at the start; . is any ${word}`;
    if (later) throw wrong(later, `a ${word}`, remedy);
    return { kind, parts: [fromSource(first), ...rest] };
  }

  // --- errors ---
  function wrong(token, wanted, remedy = "") {
    const lines = text.slice(0, token.start).split("\n");
    const line = text.includes("\n") ? `line ${lines.length}, ` : "";
    const place = `${line}column ${lines.at(-1).length + 1}`;
    const short = token.text.length > 60 ? `${token.text.slice(0, 60)}\u2026` : token.text;
    // What cannot be seen, such as a space of no width, is told by its code.
    const code = (char) => `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`;
    const got = token.kind === "end" ? token.text : `'${short.replace(/[\p{C}\p{Z}]/gu, code)}'`;
    return new Error(`${place}: wanted ${wanted}, got ${got}${remedy && `; ${remedy}`}`);
  }
  function listed(labels) {
    return labels.length > 6 ? `${labels[0]} \u2026 ${labels.at(-1)}` : labels.join(", ") || "none";
  }
  function numbers(found) {
    const sorted = found.sort((a, b) => a - b), [first] = sorted, last = sorted.at(-1);
    const run = first < last && last - first === sorted.length - 1;
    return run ? `${first} to ${last}` : listed(sorted);
  }
  function sourcesWanted() {
    return `a source (${listed(sources)})`;
  }
  function labelsWanted(nothing = `${sourcesWanted()} or a head (none)`) {
    const wanted = Object.entries(kinds).map(([letter, layers]) => {
      const ending = (index) => (letter === "M" ? "" : index);
      const labels = layers.flatMap(([n, found]) => found.map((i) => `L${n}${letter}${ending(i)}`));
      return `${letter === "M" ? "an" : "a"} ${NAMES[letter][0]} (${listed(labels)})`;
    });
    const last = wanted.pop();
    return last ? `${[sourcesWanted(), ...wanted].join(", ")} or ${last}` : nothing;
  }

  // --- an automaton that is in many states at once, so that no query takes it long: a state is
  //     { test, next }, or { either } for the states that it stands for ---
  function states({ kind, parts, test, optional, again }, next) {
    if (kind === "series") return parts.reduceRight((after, part) => states(part, after), next);
    if (kind === "choice") return { either: parts.map((part) => states(part, next)) };
    if (kind !== "repeat") return { test, next };
    const loop = {}, once = states(parts[0], again ? loop : next);
    loop.either = [once, next];
    return optional ? loop : once;
  }
  function reached(from) {
    const found = new Set(from); // the loop also meets what is added in it
    for (const { either = [] } of found) either.forEach((each) => found.add(each));
    return [...found];
  }
  const negated = skip("not");
  const end = {}, start = reached([states(fromSource(choice("the end")), end)]);
  return (path) => {
    let now = start;
    for (const [place, label] of path.split(" > ").entries()) {
      const [, layer, letter, index] = /^L(\d+)([HNM])(\d*)$/.exec(label) ?? [];
      if (place ? !letter : !sources.includes(label)) return false; // no path of this network
      const each = place ? { letter, layer: +layer, index: +index } : label;
      now = reached(now.filter(({ test }) => test?.(each)).map((state) => state.next));
    }
    return now.includes(end) !== negated;
  };
}
