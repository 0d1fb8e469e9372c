// How texts, numbers and rows of small tables are written on a page: texts letter by letter.

const escaped = (text) => String(text).replace(/[&<>"'$\\`]/g, (c) => `&#${c.charCodeAt(0)};`);
const mono = (text) => `<span class="mono" dir="ltr">${escaped(text)}</span>`;
const grouped = (count) => count.toLocaleString("en-US");
const counted = (count, noun) => `${grouped(count)} ${noun}${Number(count) === 1 ? "" : "s"}`;
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
  if (bound === null) return "an unknown size";
  const near = Number(bound.toPrecision(4));
  const unit = bound > 0 ? 10 ** (Math.floor(Math.log10(bound)) - 3) : 0;
  return String(Number((near < bound ? near + unit : near).toPrecision(4)));
}
