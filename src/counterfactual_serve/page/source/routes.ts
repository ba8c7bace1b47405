// Which panel is shown: the part of the address after #. On wide screens people stand beside the person.

import { showCard } from "./card";
import { showCompare } from "./compare";
import { at } from "./dom";
import { showMap } from "./map";
import { state } from "./state";

const VIEWS = ["people", "plans", "map", "compare", "groups", "card", "receipt"] as const;
export type View = (typeof VIEWS)[number];

const wide = window.matchMedia("(min-width: 1100px)");

function available(view: View): boolean {
  const { data, against, audit, receipts } = state.about;
  if (view === "people") return data !== null;
  if (view === "compare") return against !== null;
  if (view === "groups") return audit;
  return view === "receipt" ? receipts : true;
}

export function currentView(): View {
  const asked = VIEWS.find((view) => `#${view}` === location.hash);
  if (asked && available(asked)) return asked;
  return state.about.data && !wide.matches ? "people" : "plans";
}

export function go(view: View): void {
  if (location.hash === `#${view}`) show(true);
  else location.hash = view;
}

/** After somebody chose a row: on small screens its plans are elsewhere; on wide ones they stand beside it. */
export function toPerson(): void {
  if (!wide.matches) go("plans");
}

export function buildRoutes(): void {
  at("nav-people").hidden = !available("people");
  if (!available("people")) at("nav-wide").textContent = "Plans";
  for (const view of ["compare", "groups", "receipt"] as const) at(`nav-${view}`).hidden = !available(view);
  window.addEventListener("hashchange", () => show(true));
  wide.addEventListener("change", () => show(false));
  at("skip").addEventListener("click", (event) => {
    // The link's own target would be taken for a panel.
    event.preventDefault();
    at("main").focus();
  });
  at("workspace").classList.toggle("without-people", !available("people"));
  show(false);
}

/** Show the panel of the address; `moved` by the user: then the focus and the window go there too. */
function show(moved: boolean): void {
  const view = currentView();
  const aboutPerson = view !== "groups" && view !== "card" && view !== "receipt";
  const people = available("people") && aboutPerson && (wide.matches || view === "people");
  const desk = aboutPerson && (wide.matches || view !== "people");
  at("workspace").hidden = !aboutPerson;
  at("panel-people").hidden = !people;
  at("desk").hidden = !desk;
  at("panel-plans").hidden = !desk || (view !== "plans" && view !== "people");
  for (const name of ["map", "compare", "groups", "card", "receipt"] as const)
    at(`panel-${name}`).hidden = view !== name;
  markNavigation(view);
  showMap(view === "map");
  showCompare(view === "compare");
  if (view === "card") void showCard();
  if (moved) arrive(view);
}

function markNavigation(view: View): void {
  const shown = view === "people" && wide.matches ? "plans" : view;
  document.querySelectorAll<HTMLAnchorElement>("#nav a").forEach((link) => {
    if (link.hash === `#${shown}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  const title = at(`${view}-title`).textContent ?? "";
  document.title = `${title} – ${state.about.model.name}`;
}

function arrive(view: View): void {
  window.scrollTo(0, 0);
  at(`${view}-title`).focus({ preventScroll: true });
}
