"use strict";
// The findings' filter. Everything is in the page already; this only hides and shows.
(() => {
  const form = document.getElementById("filter");
  if (!form) return;
  const search = document.getElementById("search");
  const shown = document.getElementById("shown");
  const kinds = [...document.querySelectorAll("details.kind[data-severity]")];
  const LARGEST = 4096;

  // "a.{0..2,5}.b" as every name it stands for, so that "a.1.b" is found in it.
  const expand = (pattern) => {
    let names = [""];
    for (const piece of pattern.split(/(\{[\d.,]+\})/)) {
      let values = [piece];
      if (/^\{[\d.,]+\}$/.test(piece)) {
        values = [];
        for (const run of piece.slice(1, -1).split(",")) {
          const [first, last = first] = run.split("..").map(Number);
          for (let n = first; n <= last && values.length <= LARGEST; n += 1) values.push(n);
        }
      }
      if (names.length * values.length > LARGEST) return pattern;
      names = names.flatMap((name) => values.map((value) => name + value));
    }
    return names.join("\n");
  };

  const rows = kinds.flatMap((kind) =>
    [...kind.querySelectorAll("li")].map((item) => {
      const names = [...item.querySelectorAll("code")].map((code) => expand(code.textContent));
      const text = [kind.dataset.id, item.textContent, ...names].join("\n").toLowerCase();
      return { kind, item, text };
    }),
  );
  const opened = new Map(kinds.map((kind) => [kind, kind.open]));

  const apply = () => {
    const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const boxes = [...form.querySelectorAll("input[type=checkbox]")];
    const unwanted = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
    const alive = new Set();
    let count = 0;
    for (const { kind, item, text } of rows) {
      const fits = !unwanted.has(kind.dataset.severity) && words.every((word) => text.includes(word));
      item.hidden = !fits;
      if (fits) {
        alive.add(kind);
        count += 1;
      }
    }
    for (const kind of kinds) {
      kind.hidden = !alive.has(kind);
      kind.open = words.length ? alive.has(kind) : opened.get(kind);
    }
    const all = rows.length === 1 ? "1 row" : `${rows.length} rows`;
    shown.value = count === rows.length ? all : `${count} of ${all}`;
  };

  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && search.value) {
      search.value = "";
      apply();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.ctrlKey && !event.metaKey && event.target !== search) {
      event.preventDefault();
      search.focus();
    }
  });
  for (const link of document.querySelectorAll("a[data-find]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      search.value = link.dataset.find;
      apply();
      document.getElementById("findings").scrollIntoView();
      search.focus({ preventScroll: true });
    });
  }
  apply();
})();
