(() => {
  "use strict";
  // Tables: a click on a column's title sorts by it, numbers as numbers, cells without a value last.
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((title, column) => {
      const button = document.createElement("button");
      button.append(...title.childNodes);
      title.append(button);
      button.addEventListener("click", () => {
        const numeric = title.classList.contains("num");
        const before = title.getAttribute("aria-sort");
        const down = before ? before === "ascending" : numeric;
        const key = (row) => {
          const cell = row.cells[column];
          return numeric ? (cell.dataset.value === undefined ? NaN : Number(cell.dataset.value)) : cell.textContent;
        };
        const sorted = [...body.rows].map((row) => [key(row), row]).sort(([a], [b]) => {
          if (numeric) {
            if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
            return down ? b - a : a - b;
          }
          return (down ? -1 : 1) * a.localeCompare(b, undefined, { numeric: true });
        });
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        title.setAttribute("aria-sort", down ? "descending" : "ascending");
        body.append(...sorted.map(([, row]) => row));
      });
    });
  }
  // Commands: a button that copies.
  for (const command of document.querySelectorAll(".command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      const code = command.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    command.append(button);
  }
  // Diagrams: the legend tells the values of the epoch under the pointer, else the last ones.
  for (const figure of document.querySelectorAll("figure.chart")) {
    const svg = figure.querySelector("svg[data-lines]");
    if (!svg) continue;
    const lines = JSON.parse(svg.dataset.lines);
    const [low, high, left, right] = JSON.parse(svg.dataset.range);
    const epochs = [...new Set(lines.flatMap((line) => line.x))];
    const cursor = svg.querySelector(".cursor");
    const told = [...figure.querySelectorAll(".legend .now")];
    const last = told.map((cell) => cell.textContent);
    const caption = figure.querySelector("figcaption");
    const title = caption.textContent;
    const leave = () => {
      cursor.style.visibility = "hidden";
      caption.textContent = title;
      told.forEach((cell, i) => { cell.textContent = last[i]; });
    };
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      const wanted = low + (at - left) / (right - left) * (high - low);
      const epoch = epochs.reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a));
      const x = left + (epoch - low) / (high - low) * (right - left);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.style.visibility = "visible";
      caption.textContent = `${title}, epoch ${epoch}`;
      lines.forEach((line, i) => {
        const place = line.x.indexOf(epoch);
        told[i].textContent = place < 0 ? "–" : String(Number(line.y[place].toPrecision(4)));
      });
    });
  }
})();
