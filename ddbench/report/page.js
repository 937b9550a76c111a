"use strict";
const isMissing = (text) => /^–[⁰¹²³⁴-⁹]*$/.test(text);
const make = (tag, properties, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
function textOf(cell) {
  if (cell.dataset.full !== undefined) return cell.dataset.full;
  const detail = cell.querySelector("small");
  return detail ? cell.textContent.slice(0, -detail.textContent.length) : cell.textContent;
}

// What a cell is sorted by: nothing where its value is missing; as it shows, unless it says something else.
function keyOf(cell, isNumber) {
  const text = textOf(cell);
  return cell.dataset.sort ?? (isMissing(text) ? "" : isNumber ? plain(text) : text);
}
const plain = (text) => text.replaceAll("\u202f", "").replace("−", "-").replace(/x$/, "");

// Sort a table by a column: first click ascending, second descending; missing values stay last.
function sortBy(header) {
  const row = header.parentNode, body = header.closest("table").tBodies[0];
  const place = [...row.cells].indexOf(header), isNumber = header.classList.contains("n");
  const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const cell of row.cells) cell.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  const keyed = [...body.rows].map((line) => [keyOf(line.cells[place], isNumber), line]);
  keyed.sort(([a], [b]) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    return direction * (isNumber ? a - b : a.localeCompare(b, "en", { numeric: true }));
  });
  body.append(...keyed.map(([, line]) => line));
}

// Tables as CSV: numbers as they are shown, and beside them their intervals or the reason why there is no value.
// Text that a spreadsheet would take for a formula is marked as text.
function field(text) {
  const isNumber = /^[-+]?(\d+\.?\d*|\.\d+)$/.test(text);
  const safe = !isNumber && /^[=+\-@\t\r\n＝＋－＠]/.test(text) ? "'" + text : text;
  return /[",\r\n]/.test(safe) || safe !== text ? '"' + safe.replaceAll('"', '""') + '"' : safe;
}
function numberOf(text) {
  const value = text.replaceAll("\u202f", "");
  return /^\d+(\.\d+)?x$/.test(value) ? plain(value) : value;
}
function csvOf(holder) {
  const lines = [], table = holder.querySelector("table");
  if (!table) {
    for (const pair of holder.querySelectorAll(".pairs > div")) lines.push([...pair.children].map((own) => own.textContent));
  } else {
    const heads = [...table.tHead.rows[0].cells], rows = [...table.tBodies[0].rows];
    const hasDetail = heads.map((_, place) => rows.some(({ cells }) =>
      cells[place].querySelector("small") || isMissing(textOf(cells[place]))));
    lines.push(heads.flatMap((head, place) => {
      const unit = head.querySelector(".unit")?.textContent ?? "";
      const title = head.textContent.slice(0, head.textContent.length - unit.length).trim();
      return [unit ? `${title} (${unit})` : title, ...(hasDetail[place] ? [`${title}: note`] : [])];
    }));
    for (const { cells } of rows) lines.push(heads.flatMap((head, place) => {
      const cell = cells[place], text = textOf(cell), missing = isMissing(text);
      const value = missing ? "" : head.classList.contains("n") ? numberOf(text) : text;
      const note = missing ? tipOf(cell) : cell.querySelector("small")?.textContent ?? "";
      return [value, ...(hasDetail[place] ? [note] : [])];
    }));
  }
  return lines.map((line) => line.map(field).join(",") + "\r\n").join("");
}
function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  const link = make("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// What several cells say on demand stands in the page once; they have its number.
const tips = JSON.parse(document.getElementById("tips").textContent);
for (const cell of document.querySelectorAll("[data-t]")) {
  cell.title = tips[cell.dataset.t];
  cell.removeAttribute("data-t");
}

// The header of a row says what it stands for; rows below of the same name have it from there.
for (const body of document.querySelectorAll("tbody")) {
  let above = null;
  for (const { cells: [head] } of body.rows) {
    if (above?.innerHTML === head.innerHTML && !head.hasAttribute("title")) head.title = above.title;
    above = head;
  }
  for (const head of body.querySelectorAll('[title=""]')) head.removeAttribute("title");
}

// Above every table: its download, and for a long one a filter of its rows.
const FEW_ROWS = 20;
for (const holder of document.querySelectorAll(".table")) {
  const title = holder.querySelector("h3, summary"), name = title.textContent;
  const slug = `${holder.closest("section").id} ${name}`.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  const tools = make("div", { className: "tools" });
  const body = holder.querySelector("tbody");
  if (body && body.rows.length > FEW_ROWS) {
    const filter = make("input", { type: "search", placeholder: "Filter rows" });
    filter.setAttribute("aria-label", `Filter rows of ${name}`);
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/);
      for (const row of body.rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
    tools.append(filter);
  }
  const button = make("button", { type: "button", className: "get", title: "Download this table as CSV" }, "CSV");
  button.setAttribute("aria-label", `Download ${name} as CSV`);
  button.addEventListener("click", () => save(`${slug.slice(0, 80)}.csv`, csvOf(holder)));
  tools.append(button);
  if (title.tagName === "H3") title.replaceWith(make("div", { className: "head" }, title.cloneNode(true), tools));
  else title.after(tools);
}

// What a cell says on demand: to a mouse that rests on it, to a finger that taps it, to a keyboard that moves to it.
const tip = document.getElementById("tip");
let told = null, leaving = 0;
const tipOf = (cell) => cell.dataset.tip ?? cell.title;
function showTip(cell) {
  clearTimeout(leaving);
  if (cell === told) return;
  told?.removeAttribute("aria-describedby");
  told = cell;
  tip.hidden = !cell;
  if (!cell) return;
  if (cell.title) { // ours takes the place of the browser's own
    cell.dataset.tip = cell.title;
    cell.removeAttribute("title");
  }
  tip.textContent = cell.dataset.tip;
  cell.setAttribute("aria-describedby", "tip");
  tip.style.left = tip.style.top = "";
  if (innerWidth <= 640) return; // at the foot of a small screen, by the style
  const box = cell.getBoundingClientRect(), own = tip.getBoundingClientRect();
  const left = Math.min(box.left, innerWidth - own.width - 12);
  const below = box.bottom + 6, above = box.top - own.height - 6;
  tip.style.left = `${Math.max(12, left)}px`;
  tip.style.top = `${below + own.height < innerHeight - 6 || above < 6 ? below : above}px`;
}
const withTip = (target) => target instanceof Element ? target.closest("main [title], main [data-tip]") : null;
document.addEventListener("pointerover", (event) => {
  if (event.pointerType === "touch") return;
  const cell = withTip(event.target);
  if (cell) showTip(cell);
  else if (event.target === tip) clearTimeout(leaving);
  else if (told) { clearTimeout(leaving); leaving = setTimeout(() => showTip(null), 150); }
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("th button");
  if (button) sortBy(button.parentNode);
  else if (event.target !== tip) showTip(withTip(event.target));
});
document.addEventListener("focusin", (event) => showTip(event.target.matches(":focus-visible") ? withTip(event.target) : null));
document.addEventListener("focusout", () => showTip(null));
window.addEventListener("scroll", () => showTip(null), { passive: true });

// Arrow keys walk from cell to cell of the table that has the focus, so that a table is one stop of the tab key.
const MOVES = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") return showTip(null);
  const move = MOVES[event.key], region = event.target.closest(".scroll");
  if (!move || !region || event.ctrlKey || event.metaKey || event.altKey) return;
  const rows = [...region.querySelectorAll("tr")].filter((row) => !row.hidden);
  const cell = event.target.closest("th, td");
  let [line, place] = cell ? [rows.indexOf(cell.parentNode), cell.cellIndex] : [0, 0];
  line = Math.min(rows.length - 1, Math.max(0, line + move[0]));
  place = Math.min(rows[line].cells.length - 1, Math.max(0, place + move[1]));
  event.preventDefault();
  const next = rows[line].cells[place];
  const target = next.querySelector("button") ?? next;
  if (target === next) next.tabIndex = -1;
  target.focus({ focusVisible: true });
});

// On paper everything is open, in every browser.
let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const fold of opened) fold.open = true;
});
window.addEventListener("afterprint", () => {
  for (const fold of opened) fold.open = false;
});
// A link into a fold opens it.
window.addEventListener("hashchange", () => {
  const fold = document.getElementById(decodeURIComponent(location.hash.slice(1)))?.closest("details");
  if (fold) fold.open = true;
});

// Mark the section that is being read in the navigation.
const nav = document.querySelector("nav");
const links = new Map([...nav.querySelectorAll("a")].map((link) => [link.hash.slice(1), link]));
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const link of links.values()) link.removeAttribute("aria-current");
    const link = links.get(entry.target.id);
    link.setAttribute("aria-current", "true");
    if (link.offsetLeft < nav.scrollLeft || link.offsetLeft + link.offsetWidth > nav.scrollLeft + nav.clientWidth)
      nav.scrollLeft = link.offsetLeft - 24;
  }
}, { rootMargin: "-15% 0px -75% 0px" });
for (const id of links.keys()) watcher.observe(document.getElementById(id));
