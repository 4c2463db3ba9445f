// What pages are made of.
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { count } from "./format.js";

// --- what the whole page shows: a dialog, and what was done ---------------------------------------

let show = { dialog: () => {}, toast: () => {} };
export const whenShown = (calls) => (show = calls);
export const toast = (text, kind = "good") => show.toast({ text, kind });
export const openDialog = (dialog) => show.dialog(dialog);
export const closeDialog = () => show.dialog(null);

/** `fields`: what is asked for. `name`: has to be typed before what cannot be taken back is done. */
export function Dialog({ title, text, name, fields = [], action = "Save", danger, run, done }) {
  const element = useRef(null);
  const [values, setValues] = useState(() => Object.fromEntries(fields.map((f) => [f.key, f.value ?? ""])));
  const [typed, setTyped] = useState("");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(null);
  useEffect(() => {
    element.current.showModal();
    element.current.querySelector("input, textarea, select")?.focus();
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy("Working …");
    setError(null);
    try {
      const said = await run(values, setBusy);
      closeDialog();
      if (typeof said === "string") toast(said);
      done?.();
    } catch (failed) {
      setError(failed.message);
      setBusy(null);
    }
  };
  const set = (key, value) => setValues((old) => ({ ...old, [key]: value }));
  return html`<dialog ref=${element} aria-labelledby="dialog-title" onClose=${closeDialog}>
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${title}</h2>
      ${text && html`<p class="muted">${text}</p>`}
      ${fields.map((field) => html`<${Field} key=${field.key} field=${field} value=${values[field.key]} set=${set} />`)}
      ${name !== undefined &&
      html`<label>Type <strong class="mono">${name}</strong> to go on
        <input name="confirm" autocomplete="off" spellcheck=${false} value=${typed} onInput=${(e) => setTyped(e.target.value)} />
      </label>`}
      ${error && html`<p class="note bad" role="alert">${error}</p>`}
      <div class="row end">
        <button type="button" onClick=${closeDialog}>Cancel</button>
        <button class=${danger || name !== undefined ? "danger" : "primary"} disabled=${busy !== null || (name !== undefined && typed !== name)}>
          ${busy ?? action}
        </button>
      </div>
    </form>
  </dialog>`;
}

function Field({ field, value, set }) {
  const { key, label, kind = "text", options, hint, rows = 5, required, list } = field;
  const input = (e) => set(key, e.target.value);
  if (kind === "check") {
    return html`<label class="check">
      <input type="checkbox" name=${key} checked=${Boolean(value)} onChange=${(e) => set(key, e.target.checked)} />${label}
      ${hint && html`<small>${hint}</small>`}
    </label>`;
  }
  return html`<label>${label}
    ${kind === "select"
      ? html`<select name=${key} value=${value} onChange=${input}>${options.map((o) => html`<option value=${o}>${o || "–"}</option>`)}</select>`
      : kind === "area"
        ? html`<textarea name=${key} rows=${rows} spellcheck=${false} value=${value} onInput=${input} />`
        : html`<input name=${key} type=${kind} required=${required} list=${list && `list-${key}`} autocomplete=${kind === "password" ? "new-password" : "off"} spellcheck=${false} value=${value} onInput=${input} />`}
    ${list && html`<datalist id=${`list-${key}`}>${list.map((o) => html`<option value=${o} />`)}</datalist>`}
    ${hint && html`<small>${hint}</small>`}
  </label>`;
}

/** Text of a form that is JSON; empty is nothing. */
export function parsed(text, what) {
  if (!text.trim()) return {};
  try {
    return JSON.parse(text);
  } catch (wrong) {
    throw new Error(`${what} is no JSON: ${wrong.message}`);
  }
}

// --- pieces ---------------------------------------------------------------------------------------

/** What is between backticks is a command. */
export const withCode = (text) => text.split("`").map((part, place) => (place % 2 ? html`<code>${part}</code>` : part));

export const Badge = ({ kind = "", children }) => html`<span class="badge ${kind}">${children}</span>`;

export const Stat = ({ label, value, unit, kind = "", title }) => html`<div class="stat ${kind}" title=${title}>
  <span>${label}</span><strong>${value}${unit && html`<small> ${unit}</small>`}</strong>
</div>`;

export const Card = ({ title, actions, children, id, flush }) => html`<section class="card ${flush ? "flush" : ""}" aria-labelledby=${id}>
  ${title && html`<header><h2 id=${id}>${title}</h2><div class="row">${actions}</div></header>`}
  ${children}
</section>`;

export const Empty = ({ title, children }) => html`<div class="empty"><strong>${title}</strong><p>${children}</p></div>`;

export function Trouble({ error }) {
  return error ? html`<p class="note bad" role="alert">${error.message}</p>` : null;
}

export function Page({ title, sub, actions, error, children }) {
  return html`<div class="page">
    <header class="title"><div><h1 tabindex="-1">${title}</h1>${sub && html`<p class="muted">${sub}</p>`}</div><div class="row">${actions}</div></header>
    <${Trouble} error=${error} />
    ${children}
  </div>`;
}

export const Loading = () => html`<p class="muted" role="status">Loading …</p>`;

export const Bar = ({ value, max, label, kind }) => {
  const share = max ? Math.min(100, (100 * value) / max) : 0;
  const how = kind ?? (share > 90 ? "bad" : share > 75 ? "warn" : "");
  return html`<div class="bar ${how}" role="img" aria-label=${label}><i style=${{ width: `${share}%` }} /></div>`;
};

/** A map of names and values, as arguments and headers are. */
export function Facts({ of, none = "none" }) {
  const every = Object.entries(of ?? {});
  if (!every.length) return html`<span class="muted">${none}</span>`;
  return html`<dl class="facts">
    ${every.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value !== null && typeof value === "object" && !value.type ? JSON.stringify(value) : value === null ? "–" : typeof value === "boolean" ? String(value) : value}</dd></div>`)}
  </dl>`;
}

/**
 * `columns`: { key, label, num, show(row), sort, minor }; `minor` ones are left out on a phone.
 * `sort` and `onSort` when the server sorts; without them the table does.
 */
export function Table({ columns, rows, keyOf, sort, reverse, onSort, empty, label }) {
  const [own, setOwn] = useState({ sort: null, reverse: false });
  const now = onSort ? { sort, reverse } : own;
  const by = (key) => {
    const next = { sort: key, reverse: now.sort === key ? !now.reverse : Boolean(columns.find((c) => c.sort === key)?.num) };
    if (onSort) onSort(next.sort, next.reverse);
    else setOwn(next);
  };
  if (!rows) return html`<${Loading} />`;
  if (!rows.length) return empty ?? html`<${Empty} title="Nothing here" />`;
  let shown = rows;
  if (!onSort && own.sort) {
    const value = (row) => own.sort.split(".").reduce((v, part) => v?.[part], row) ?? "";
    shown = [...rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return own.reverse ? -order : order;
    });
  }
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table>
      <thead><tr>${columns.map((c) => html`<th key=${c.key} scope="col" class="${c.num ? "num" : ""} ${c.minor ? "minor" : ""}"
        aria-sort=${c.sort && now.sort === c.sort ? (now.reverse ? "descending" : "ascending") : undefined}>
        ${c.sort ? html`<button class="plain" onClick=${() => by(c.sort)}>${c.label}<i aria-hidden="true">${now.sort === c.sort ? (now.reverse ? "↓" : "↑") : ""}</i></button>` : c.label}
      </th>`)}</tr></thead>
      <tbody>${shown.map((row) => html`<tr key=${keyOf(row)}>
        ${columns.map((c) => html`<td key=${c.key} class="${c.num ? "num" : ""} ${c.minor ? "minor" : ""}">${c.show ? c.show(row) : row[c.key]}</td>`)}
      </tr>`)}</tbody>
    </table>
  </div>`;
}

export function Pager({ data, page, go }) {
  if (!data) return null;
  const { page_count: pages, filtered_count: found, total_count: total } = data;
  return html`<nav class="pager" aria-label="Pages">
    <span class="muted">${found === total ? count(total) : `${count(found)} of ${count(total)}`}</span>
    <span class="row">
      <button disabled=${page <= 1} onClick=${() => go(page - 1)} aria-label="Previous page">‹</button>
      <span>${page} / ${pages}</span>
      <button disabled=${page >= pages} onClick=${() => go(page + 1)} aria-label="Next page">›</button>
    </span>
  </nav>`;
}

export function Tabs({ tabs, now, go, label }) {
  return html`<div class="tabs" role="group" aria-label=${label}>
    ${tabs.map(([key, text]) => html`<button key=${key} aria-pressed=${now === key} onClick=${() => go(key)}>${text}</button>`)}
  </div>`;
}
