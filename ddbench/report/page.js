"use strict";
// Sort a table by a column: first click ascending, second descending; missing values stay last.
function sortBy(header) {
  const row = header.parentNode, body = header.closest("table").tBodies[0];
  const place = [...row.cells].indexOf(header), isNumber = header.classList.contains("n");
  const direction = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const cell of row.cells) cell.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  const key = (line) => line.cells[place].dataset.sort;
  const rows = [...body.rows].sort((one, other) => {
    const a = key(one), b = key(other);
    if (a === "" || b === "") return (a === "") - (b === "");
    return direction * (isNumber ? a - b : a.localeCompare(b, "en", { numeric: true }));
  });
  body.append(...rows);
}

// What a mouse sees on hover, a finger sees on tap.
function showTip(cell) {
  const tip = document.getElementById("tip");
  tip.hidden = !cell || !cell.title;
  tip.textContent = cell ? cell.title : "";
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("th button");
  if (button) sortBy(button.parentNode);
  else showTip(event.target.closest("td[title]"));
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") showTip(null); });
window.addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
});

// Mark the section that is being read in the navigation.
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const link of links.values()) link.removeAttribute("aria-current");
    links.get(entry.target.id).setAttribute("aria-current", "true");
  }
}, { rootMargin: "-15% 0px -75% 0px" });
for (const id of links.keys()) watcher.observe(document.getElementById(id));
