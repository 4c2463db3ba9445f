// Users, virtual hosts, policies, queues, exchanges and bindings as one document.
import { html, useState } from "../vendor/preact-htm.js";
import { get, post } from "../api.js";
import { Card, Page, Table, toast } from "../parts.js";

async function save(rabbitmq) {
  try {
    const text = JSON.stringify(await get(`definitions${rabbitmq ? "?hashes=rabbitmq" : ""}`), null, 2);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = `quorate-definitions-${new Date().toISOString().slice(0, 10)}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  } catch (failed) {
    toast(failed.message, "bad");
  }
}

function Report({ label, rows }) {
  if (!rows?.length) return null;
  return html`<h3>${label}</h3><${Table} label=${label} keyOf=${(row) => `${row.section}/${row.vhost}/${row.name}`} rows=${rows} columns=${[{ key: "section", label: "What" }, { key: "name", label: "Name" }, { key: "reason", label: "Why" }]} />`;
}

export function Definitions() {
  const [report, setReport] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const load = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    setBusy(true);
    setError(null);
    setReport(null);
    try {
      const document = JSON.parse(await form.get("file").text());
      const answer = await post(`definitions${form.get("skip") ? "?skip=unsupported" : ""}`, document);
      setReport(answer?.report ?? []);
      toast("The definitions are imported.");
    } catch (failed) {
      setError(failed);
    }
    setBusy(false);
  };
  return html`<${Page} title="Definitions" sub="Users, virtual hosts, policies, queues, exchanges and bindings as one JSON document; messages are not in it.">
    <div class="two">
      <${Card} title="Export" id="export"><p>Passwords are in it as hashes: keep it where only administrators read.</p>
        <div class="row"><button class="primary" onClick=${() => save(false)}>Save a file</button><button onClick=${() => save(true)}>Save one for RabbitMQ</button></div><//>
      <${Card} title="Import" id="import"><form onSubmit=${load}>
        <p>All or nothing: everything is checked first. Queues and exchanges that are there stay as they are. RabbitMQ's exports are taken, too.</p>
        <label>File<input type="file" name="file" accept="application/json,.json" required /></label>
        <label class="check"><input type="checkbox" name="skip" value="1" />Leave out what is not supported here</label>
        ${error && html`<p class="note bad" role="alert">${error.message}</p>`}
        <button class="primary" disabled=${busy}>${busy ? "Importing …" : "Import"}</button></form>
        <${Report} label="Left out" rows=${report?.filter((row) => row.outcome === "left_out")} />
        <${Report} label="Imported, without effect" rows=${report?.filter((row) => row.outcome === "without_effect")} />
      <//>
    </div>
  <//>`;
}
