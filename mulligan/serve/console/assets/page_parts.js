// Parts of pages: fetched from the server that rendered the page, and replaced without moving what a person does.

/** A part of a page as a document fragment; null if it cannot be fetched now. Whoever is signed out is sent to sign in. */
export async function fetchPart(url) {
  try {
    const response = await fetch(url, { credentials: "same-origin", headers: { Accept: "text/html" } });
    if (response.redirected) location.reload();
    if (!response.ok || response.redirected) return null;
    return new DOMParser().parseFromString(await response.text(), "text/html");
  } catch {
    return null;
  }
}

/** Replace what is inside an element; what was open stays open, and the focus stays where it was. */
export function replaceInside(element, nodes) {
  const open = [...element.querySelectorAll("details")].map((each) => each.open);
  const focused = element.contains(document.activeElement) ? pathOf(document.activeElement, element) : null;
  element.replaceChildren(...nodes);
  element.querySelectorAll("details").forEach((each, place) => { if (open[place]) each.open = true; });
  if (focused) elementAt(focused, element)?.focus({ preventScroll: true });
  showLocalTimes(element);
}

/** Times in the reader's own time zone; the title keeps UTC. */
export function showLocalTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]:not([data-local])")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const isMoment = time.classList.contains("moment");
    time.title ||= time.textContent;
    const day = isMoment ? { day: "numeric", month: "short", year: sameYear(at) ? undefined : "numeric" } : {};
    const clock = { hour: "2-digit", minute: "2-digit", second: isMoment ? undefined : "2-digit", hourCycle: "h23" };
    time.textContent = at.toLocaleString("en-GB", { ...day, ...clock });
    time.dataset.local = "";
  }
}

function sameYear(at) {
  return at.getFullYear() === new Date().getFullYear();
}

function pathOf(node, root) {
  if (node.id) return `#${CSS.escape(node.id)}`;
  const places = [];
  for (; node !== root; node = node.parentElement) places.unshift([...node.parentElement.children].indexOf(node));
  return places;
}

function elementAt(path, root) {
  return typeof path === "string" ? root.querySelector(path) : path.reduce((node, place) => node?.children[place], root);
}
