// Elements of the page. Text goes in as text nodes and nothing else, so what peers write stays text.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; a child is an element, a text, or nothing. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for drawings. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== undefined && child !== null));
  return node;
}

/** Another text, where it is another. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Another attribute, where it is another. */
export function set(node, name, value) {
  const text = value === undefined || value === null ? null : String(value);
  if (node.getAttribute(name) === text) return;
  if (text === null) node.removeAttribute(name);
  else node.setAttribute(name, text);
}

/** A figure: what it is, its value, and in words whether that is healthy. Returns its element and how to change it. */
export function figure(label) {
  const name = el("dt", {}, label);
  const value = el("dd", { class: "value" }, "–");
  const words = el("dd", { class: "words" });
  const node = el("div", { class: "figure" }, name, value, words);
  const show = (text, health = {}, now = label) => {
    say(name, now);
    say(value, text);
    say(words, health.words ?? "");
    set(node, "data-tone", health.tone || null);
  };
  return { node, show };
}

/** A list of figures side by side. */
export function figures(...all) {
  return el("dl", { class: "figures" }, ...all.map((one) => one.node));
}

/** A question with its answer: what every page is made of. */
export function section(title, ...children) {
  return el("section", {}, el("h2", {}, title), ...children);
}
