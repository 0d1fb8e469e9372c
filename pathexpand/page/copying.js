// Text to the clipboard.

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
