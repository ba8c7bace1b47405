// Elements are built here and nowhere else. Text only ever becomes a text node, so nothing from data can become HTML.

export type Child = Node | string | number | null | undefined | false | Child[];
type Value = string | number | boolean | null | undefined;
type Listeners = { [K in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[K]) => void };
export type Props = { on?: Listeners; [attribute: string]: Value | Listeners };

const SVG = "http://www.w3.org/2000/svg";
// Set as properties, because the attribute is only the value that a form starts with.
const LIVE = new Set(["value", "checked", "disabled", "selected", "indeterminate"]);

/** An element with attributes, listeners (`on`) and children. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  // Children first: a select takes a value only if it has the option.
  add(element, children);
  setAll(element, props);
  return element;
}

/** The same for SVG. */
export function s<K extends keyof SVGElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS(SVG, tag);
  add(element, children);
  setAll(element, props);
  return element;
}

function setAll(element: Element, props: Props): void {
  for (const [name, value] of Object.entries(props)) {
    if (name === "on") listen(element, value as Listeners);
    else set(element, name, value as Value);
  }
}

function listen(element: Element, listeners: Listeners): void {
  for (const [type, handler] of Object.entries(listeners)) element.addEventListener(type, handler as EventListener);
}

function set(element: Element, name: string, value: Value): void {
  if (value === null || value === undefined) return;
  if (LIVE.has(name) && element instanceof HTMLElement) Object.assign(element, { [name]: value });
  else if (value !== false) element.setAttribute(name, value === true ? "" : String(value));
}

export function add(parent: Node, children: Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(parent, child);
    else parent.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replace what an element holds; the focus stays on the element with the same `data-key`, if there still is one. */
export function fill(parent: Element, ...children: Child[]): void {
  const active = document.activeElement;
  const key = active && parent.contains(active) ? active.getAttribute("data-key") : null;
  parent.replaceChildren();
  add(parent, children);
  if (key) parent.querySelector<HTMLElement>(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

/** An element of the template. */
export function at<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`The page has no element "${id}".`);
  return found as T;
}

let counter = 0;

/** An id that no other element has, to tie labels and hints to controls. */
export function fresh(name: string): string {
  counter += 1;
  return `${name}-${counter}`;
}

/** A labelled control: the label above, an optional hint below. */
export function field(label: Child, control: HTMLElement, hint?: string): HTMLElement {
  if (!control.id) control.id = fresh("field");
  const note = hint ? h("span", { class: "hint", id: `${control.id}-hint` }, hint) : null;
  if (note) control.setAttribute("aria-describedby", note.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, note);
}

/** A select of values and their words. */
export function choice(options: [string, string][], chosen: string, props: Props = {}): HTMLSelectElement {
  return h(
    "select",
    { ...props, value: chosen },
    options.map(([value, words]) => h("option", { value }, words)),
  );
}

/** A button; `kind` is how it looks: primary, quiet, plain. */
export function button(words: Child, press: () => void, props: Props = {}): HTMLButtonElement {
  return h("button", { type: "button", ...props, on: { click: press } }, words);
}

/** A name that may break after its underscores, dots and dashes, before it breaks within a word. */
export function breakable(name: string): Child[] {
  return name.split(/(?<=[_.-])(?=[^_.-])/).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
}

/** Something that may be wider than the screen. Only where it is, the tab key stops there to let arrow keys scroll it. */
export function scroller(label: string, props: Props, ...children: Child[]): HTMLElement {
  const holder = h("div", { ...props, class: `scroll ${props["class"] ?? ""}`.trim(), "data-label": label }, ...children);
  new ResizeObserver(() => {
    const over = holder.scrollWidth > holder.clientWidth;
    holder.classList.toggle("over", over);
    for (const [name, value] of [
      ["tabindex", "0"],
      ["role", "group"],
      ["aria-label", label],
    ] as const) {
      if (over) holder.setAttribute(name, value);
      else holder.removeAttribute(name);
    }
  }).observe(holder);
  return holder;
}

/** Tell screen readers without moving anything that can be seen. */
export function announce(text: string): void {
  if (!text) return;
  // A line of its own: whatever replaced the last one would keep it from being read.
  const line = h("p", {}, text);
  at("spoken").append(line);
  window.setTimeout(() => line.remove(), 8000);
}
