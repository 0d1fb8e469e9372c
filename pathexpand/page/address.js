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
