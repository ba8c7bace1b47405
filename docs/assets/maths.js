// Formulas, as arithmatex leaves them in the page. `document$` fires on every page that the theme loads.
const typeset = (root) =>
  renderMathInElement(root, {
    delimiters: [
      { left: "\\[", right: "\\]", display: true },
      { left: "\\(", right: "\\)", display: false },
    ],
  });
if (typeof document$ === "undefined") document.addEventListener("DOMContentLoaded", () => typeset(document.body));
else document$.subscribe(({ body }) => typeset(body));
