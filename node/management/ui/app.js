// The page: who is logged in, which part is shown (by the hash of the address), and the frame.
import { html, render, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { login, logout, session, whenOver } from "./api.js";
import { whenShown } from "./parts.js";
import { Overview } from "./pages/overview.js";
import { Queues } from "./pages/queues.js";
import { Queue } from "./pages/queue.js";
import { Message } from "./pages/message.js";
import { Streams, Stream } from "./pages/streams.js";
import { Connections } from "./pages/connections.js";
import { Exchanges, Exchange } from "./pages/exchanges.js";
import { Nodes } from "./pages/nodes.js";
import { Groups } from "./pages/groups.js";
import { Policies } from "./pages/policies.js";
import { Users } from "./pages/users.js";
import { Links } from "./pages/links.js";
import { Definitions } from "./pages/definitions.js";
import { Backups } from "./pages/backups.js";
import { AuditLog } from "./pages/audit.js";

// By the first word of the hash: the page of the list, and that of one of it.
const PAGES = {
  overview: [Overview],
  queues: [Queues, Queue],
  streams: [Streams, Stream],
  exchanges: [Exchanges, Exchange],
  connections: [Connections],
  message: [Message, Message],
  nodes: [Nodes],
  groups: [Groups],
  policies: [Policies],
  users: [Users],
  links: [Links],
  definitions: [Definitions],
  backups: [Backups],
  audit: [AuditLog],
};

const MENU = [
  ["", [["overview", "Overview"]]],
  ["Messages", [["queues", "Queues"], ["streams", "Streams"], ["exchanges", "Exchanges"], ["connections", "Connections"], ["message", "Message history"]]],
  ["Cluster", [["nodes", "Nodes"], ["groups", "Groups"], ["links", "Links"]]],
  ["Administration", [["policies", "Policies"], ["users", "Users"], ["definitions", "Definitions"], ["backups", "Backups"], ["audit", "Audit log"]]],
];

function placeOf(hash) {
  const [path, params] = hash.replace(/^#\/?/, "").split("?");
  const words = path.split("/").filter(Boolean).map((word) => {
    try {
      return decodeURIComponent(word);
    } catch {
      return word;
    }
  });
  return { page: words[0] ?? "overview", names: words.slice(1), params: Object.fromEntries(new URLSearchParams(params)) };
}

// --- light and dark -------------------------------------------------------------------------------

const THEMES = { "": "As the system", light: "Light", dark: "Dark" };

function setTheme(theme) {
  document.documentElement.style.colorScheme = theme || "light dark";
  localStorage.setItem("theme", theme);
  dispatchEvent(new Event("theme"));
}

function Theme() {
  const [theme, set] = useState(localStorage.getItem("theme") ?? "");
  return html`<select class="theme" aria-label="Light or dark" value=${theme} onChange=${(e) => {
    set(e.target.value);
    setTheme(e.target.value);
  }}>${Object.entries(THEMES).map(([key, text]) => html`<option value=${key}>${text}</option>`)}</select>`;
}

// --- the frame ------------------------------------------------------------------------------------

const Logo = () => html`<span class="logo"><svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" /><path d="M16 9.5 9 21.5h14z" /><circle cx="16" cy="9.5" r="3.6" /><circle cx="9" cy="21.5" r="3.6" /><circle cx="23" cy="21.5" r="3.6" /></svg>Quorate</span>`;

function Login({ entered }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    setBusy(true);
    try {
      entered(await login(form.get("username"), form.get("password")));
    } catch (failed) {
      setError(failed.message);
      setBusy(false);
    }
  };
  return html`<main class="login"><form class="card" onSubmit=${submit}>
    <h1><${Logo} /></h1>
    <label>User<input name="username" autocomplete="username" required autofocus /></label>
    <label>Password<input name="password" type="password" autocomplete="current-password" /></label>
    ${error && html`<p class="note bad" role="alert">${error}</p>`}
    <button class="primary" disabled=${busy}>${busy ? "Checking …" : "Log in"}</button>
    <p class="muted small">Users need a tag such as <span class="mono">management</span> or <span class="mono">administrator</span>. On a new cluster it is <span class="mono">guest</span> with password <span class="mono">guest</span>, from the node's own machine only.</p>
  </form></main>`;
}

function Menu({ now, close }) {
  return html`<nav aria-label="Pages">${MENU.map(([title, pages]) => html`<div key=${title}>
    ${title && html`<h2>${title}</h2>`}
    ${pages.map(([key, text]) => html`<a key=${key} href=${`#/${key}`} aria-current=${now === key ? "page" : undefined} onClick=${close}>${text}</a>`)}
  </div>`)}</nav>`;
}

function App() {
  const [user, setUser] = useState(undefined); // null: nobody; undefined: not known yet
  const [place, setPlace] = useState(placeOf(location.hash));
  const [dialog, setDialog] = useState(null);
  const [said, setSaid] = useState(null);
  const [open, setOpen] = useState(false);
  const main = useRef(null);

  useEffect(() => {
    whenOver(() => setUser(null));
    whenShown({ dialog: setDialog, toast: setSaid });
    session().then((who) => setUser(who.name ? who : null), () => setUser(null));
    const moved = () => {
      setPlace(placeOf(location.hash));
      setDialog(null);
    };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => {
    if (!said) return undefined;
    const timer = setTimeout(() => setSaid(null), 6000);
    return () => clearTimeout(timer);
  }, [said]);
  const where = [place.page, ...place.names].join("/");
  useEffect(() => {
    document.title = `${place.names.at(-1) ?? place.page} – Quorate`;
    main.current?.querySelector("h1")?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [where]);

  if (user === undefined) return null;
  if (user === null) return html`<${Login} entered=${setUser} />`;
  const [List, One] = PAGES[place.page] ?? [];
  const Shown = place.names.length ? One : List;
  const leave = async () => {
    await logout().catch(() => {});
    setUser(null);
  };
  return html`
    <a class="skip" href="#main" onClick=${(e) => {
      e.preventDefault();
      main.current.querySelector("h1").focus();
    }}>Skip to the page</a>
    <header class="top">
      <button class="plain menu" aria-expanded=${open} aria-controls="side" aria-label="Menu" onClick=${() => setOpen(!open)}>☰</button>
      <a href="#/overview" class="home"><${Logo} /></a>
    </header>
    <aside id="side" class=${open ? "open" : ""}>
      <a href="#/overview" class="home"><${Logo} /></a>
      <${Menu} now=${place.page} close=${() => setOpen(false)} />
      <footer>
        <${Theme} />
        <div class="row spread"><span title=${user.tags.join(", ")}>${user.name}</span><button class="plain" onClick=${leave}>Log out</button></div>
        <small class="muted">Quorate ${user.version} · <a href="api">API</a></small>
      </footer>
    </aside>
    <main id="main" ref=${main}>
      ${Shown
        ? html`<${Shown} key=${where} names=${place.names} params=${place.params} user=${user} />`
        : html`<div class="page"><h1 tabindex="-1">No such page</h1><p><a href="#/overview">To the overview</a></p></div>`}
    </main>
    ${dialog}
    <div class="toasts" role="status" aria-live="polite">${said && html`<p class="toast ${said.kind}">${said.text}</p>`}</div>`;
}

setTheme(localStorage.getItem("theme") ?? "");
render(html`<${App} />`, document.body);
