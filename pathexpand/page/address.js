// What is chosen on a page, kept in its address: `address.read()` gives it, `address.write` changes
// some of it. A frame in a notebook has no address of its own; there nothing is kept.
const address = {
  read: () => new URLSearchParams(location.hash.slice(1)),
  write(changes) {
    const said = address.read();
    for (const [name, text] of Object.entries(changes))
      if (text === "" || text === null) said.delete(name);
      else said.set(name, text);
    try {
      history.replaceState(null, "", `#${said}`);
    } catch { /* nothing to keep it in */ }
  },
};

const escaped = (text) => String(text).replace(/[&<>"'$\\`]/g, (c) => `&#${c.charCodeAt(0)};`);
const mono = (text) => `<span class="mono" dir="ltr">${escaped(text)}</span>`;
const grouped = (count) => count.toLocaleString("en-US");
const percent = (share) => share === null ? "-" : `${(100 * share).toFixed(1)}%`;
// A row of a table on the page, of [markup, whether it is a number].
const line = (cells) => `<tr>${cells.map(([text, number]) =>
  `<td${number ? ' class="n"' : ""}>${text}</td>`).join("")}</tr>`;

// What follows a text that runs from right to left must not join it.
const closed = (text) => /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(text)
  ? `${text}\u200e` : text;

function shortened(text) {
  const letters = [...text];
  return closed(letters.length > 14 ? `${letters.slice(0, 13).join("")}…` : text);
}

function upper(bound) { // rounded up, so that what is written is a bound, too
  const near = Number(bound.toPrecision(4));
  const unit = bound > 0 ? 10 ** (Math.floor(Math.log10(bound)) - 3) : 0;
  return String(Number((near < bound ? near + unit : near).toPrecision(4)));
}

async function copied(text) { // whether the browser let the page copy it
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // a frame or an old browser: by way of a field that is selected
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
