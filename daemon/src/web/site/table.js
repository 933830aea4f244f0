// A table whose rows stay the same elements while their cells change, sorted by a column that its reader chooses.

import { el, say, set } from "./elements.js";

export class Table {
  /** `columns`: [{ title, help, text(row), order(row), isOpposite, number, tone(row) }]; the first names a row. */
  constructor({ caption, columns, sort = 0, isReversed = false, empty }) {
    Object.assign(this, { columns, sort, isReversed, rows: new Map(), empty });
    this.body = el("tbody");
    this.heads = columns.map((column, index) => {
      const button = el("button", { type: "button", title: column.help, onclick: () => this.choose(index) }, column.title);
      return el("th", { scope: "col", class: column.number && "number" }, button);
    });
    this.note = el("p", { class: "quiet" });
    const explained = columns.filter((column) => column.help);
    const meaning = explained.length > 0 ? el("details", {}, el("summary", {}, "what the columns mean"),
      el("dl", { class: "meaning" }, ...explained.flatMap((column) => [el("dt", {}, column.title), el("dd", {}, column.help)]))) : null;
    const table = el("table", {}, el("caption", { class: "hidden" }, caption), el("thead", {}, el("tr", {}, ...this.heads)), this.body);
    this.node = el("div", {}, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, table), this.note, meaning ?? "");
    this.mark();
  }

  choose(index) {
    this.isReversed = index === this.sort && !this.isReversed;
    this.sort = index;
    this.mark();
    if (this.shown) this.show(...this.shown);
  }

  mark() {
    this.heads.forEach((head, index) => {
      // Numbers begin with the greatest, unless what orders them rises as they fall.
      const column = this.columns[index];
      const isRising = Boolean(column.number) === (this.isReversed !== Boolean(column.isOpposite));
      set(head, "aria-sort", index !== this.sort ? null : isRising ? "ascending" : "descending");
    });
  }

  /** Shows these, each under its key. */
  show(items, key) {
    this.shown = [items, key];
    const order = this.columns[this.sort].order ?? this.columns[this.sort].text;
    const sign = this.isReversed ? -1 : 1;
    const sorted = [...items].sort((one, other) => compare(order(one), order(other), sign));
    const left = new Set(this.rows.keys());
    sorted.forEach((item, index) => {
      const id = key(item);
      left.delete(id);
      const row = this.rows.get(id) ?? this.add(id);
      this.columns.forEach((column, place) => {
        say(row.children[place], column.text(item));
        set(row.children[place], "data-tone", column.tone?.(item).tone || null);
      });
      if (this.body.children[index] !== row) this.body.insertBefore(row, this.body.children[index] ?? null);
    });
    for (const id of left) {
      this.rows.get(id).remove();
      this.rows.delete(id);
    }
    say(this.note, items.length === 0 ? this.empty : "");
  }

  add(id) {
    const cells = this.columns.map((column, index) =>
      el(index === 0 ? "th" : "td", { scope: index === 0 && "row", class: column.number && "number" }));
    const row = el("tr", {}, ...cells);
    this.rows.set(id, row);
    return row;
  }
}

/** Numbers with the greatest first, texts by the alphabet; what is not known comes last in any case. */
function compare(one, other, sign) {
  const isUnknown = (value) => value === undefined || value === null;
  if (isUnknown(one) || isUnknown(other)) return Number(isUnknown(one)) - Number(isUnknown(other));
  if (typeof one === "number") return sign * (other - one);
  return sign * (one < other ? -1 : one > other ? 1 : 0);
}
