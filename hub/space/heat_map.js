// Makes the heat map navigable by keyboard and pointer, and shows row, column and weight of the current cell.
// Gradio runs this once with `element`, the component's root, which stays when its content changes.
const cellOf = (target) => target.closest?.("td[data-weight]");

function show(cell) {
  for (const marked of element.querySelectorAll(".current")) marked.classList.remove("current");
  const table = cell.closest("table");
  const row = cell.parentElement;
  const column = table.tHead.rows[0].cells[cell.cellIndex];
  for (const marked of [cell, row.cells[0], column]) marked.classList.add("current");
  element.querySelector(".readout").textContent = cell.ariaLabel;
}

// Highlights the words that a word attends to, or that attend to it, in proportion to the weights.
function highlight(word) {
  clear();
  const table = word.closest("table");
  const heads = table.tHead.rows[0].cells;
  const isRow = word.scope === "row";
  const cells = isRow
    ? [...word.parentElement.cells].slice(1)
    : [...table.tBodies[0].rows].map((row) => row.cells[word.cellIndex]);
  const partners = cells
    .map((cell) => ({ word: isRow ? heads[cell.cellIndex] : cell.parentElement.cells[0], weight: +cell.dataset.weight }))
    .sort((one, other) => other.weight - one.weight);
  for (const { word: partner, weight } of partners) {
    partner.classList.add("partner");
    partner.style.setProperty("--weight", weight / (partners[0].weight || 1));
  }
  const strongest = partners.slice(0, 3).map(({ word: { innerText }, weight }) => `${innerText} ${weight.toFixed(3)}`);
  const verb = isRow ? "attends to" : "is attended to by";
  element.querySelector(".readout").textContent = `${word.innerText} ${verb} ${strongest.join(", ")}`;
}

function clear() {
  for (const partner of element.querySelectorAll(".partner")) partner.classList.remove("partner");
}

function focus(cell) {
  for (const other of element.querySelectorAll('td[tabindex="0"]')) other.tabIndex = -1;
  cell.tabIndex = 0;
  cell.focus();
}

// The table is a single tab stop: the cell with the largest weight, until another cell has had the focus.
function begin() {
  const cells = [...element.querySelectorAll("td[data-weight]")];
  const largest = cells.reduce((best, cell) => (cell.dataset.weight > best.dataset.weight ? cell : best), cells[0]);
  if (largest) largest.tabIndex = 0;
}

element.addEventListener("focusin", ({ target }) => cellOf(target) && show(cellOf(target)));
element.addEventListener("pointerover", ({ target }) => {
  const word = target.closest("th");
  if (word) return highlight(word);
  clear();
  if (cellOf(target)) show(cellOf(target));
});
element.addEventListener("pointerleave", clear);
element.addEventListener("click", ({ target }) => {
  if (cellOf(target)) focus(cellOf(target));
  const head = target.closest("figure")?.dataset.head;
  if (head) document.querySelectorAll("#head input")[head].click(); // the first radio button is the mean
});
element.addEventListener("keydown", (event) => {
  const cell = cellOf(event.target);
  if (!cell) return;
  const { rowIndex } = cell.parentElement;
  const rows = cell.closest("table").rows;
  const at = (row, column) => rows[row]?.cells[column];
  const next = {
    ArrowLeft: at(rowIndex, cell.cellIndex - 1),
    ArrowRight: at(rowIndex, cell.cellIndex + 1),
    ArrowUp: at(rowIndex - 1, cell.cellIndex),
    ArrowDown: at(rowIndex + 1, cell.cellIndex),
    Home: at(rowIndex, 1),
    End: at(rowIndex, rows[rowIndex].cells.length - 1),
  }[event.key];
  if (!next) return;
  event.preventDefault();
  if (cellOf(next)) focus(next);
});
watch("value", begin);
begin();
