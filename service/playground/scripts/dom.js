// Elements of the page: found by id, or made.

export const byId = (id) => document.getElementById(id);

/** An element with these properties (`class` and `aria-*` too) and children. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Let a button be of use or not; one that is not keeps the focus, which a disabled one would lose. */
export const enable = (button, isEnabled) => button.setAttribute("aria-disabled", String(!isEnabled));

export const isEnabled = (button) => button.getAttribute("aria-disabled") !== "true";
