// The part of the page's address after its #, which links keep: `see` (share.js), `tab`, and `step` of the tour, from 1.

const NAMES = ["see", "tab", "step"];

/** These parts of the address. */
export function parts() {
  return new URLSearchParams(location.hash.slice(1));
}

/** The address with these parts changed; null takes one away. */
export function changed(changes) {
  const [before, after] = [parts(), new URLSearchParams()];
  for (const name of NAMES) {
    const value = name in changes ? changes[name] : before.get(name);
    if (value) after.set(name, value);
  }
  const here = location.href.split("#")[0];
  return String(after) ? `${here}#${after}` : here;
}

/** Change these parts of the address, in place: going back leaves the page. */
export function keep(changes) {
  const address = changed(changes);
  if (address !== location.href) history.replaceState(null, "", address);
}
