// Users and what they may do; virtual hosts.
import { html } from "../vendor/preact-htm.js";
import { at, del, put, usePoll } from "../api.js";
import { count } from "../format.js";
import { Badge, Card, Dialog, Page, Table, openDialog } from "../parts.js";

export function Users() {
  const users = usePoll("users", 10000);
  const permissions = usePoll("permissions", 10000);
  const vhosts = usePoll("vhosts", 10000);
  const names = (vhosts.data ?? []).map((each) => each.name);
  const again = () => [users, permissions, vhosts].forEach((each) => each.refresh());
  const edit = (row) => openDialog(html`<${Dialog} title=${row ? `User ${row.name}` : "Add a user"} done=${again} fields=${[
    ...(row ? [] : [{ key: "name", label: "Name", required: true }]),
    { key: "password", label: row ? "New password" : "Password", kind: "password", required: !row, hint: row && "Empty: it stays as it is. A new one ends the user's sessions here." },
    { key: "tags", label: "Tags", value: row?.tags.join(", ") ?? "management", hint: "management, policymaker, monitoring, administrator; none: clients only" },
  ]} run=${async ({ name, password, tags }) => {
    const kept = row && !password ? { password_hash: row.password_hash, hashing_algorithm: row.hashing_algorithm } : { password };
    await put(`users/${at(row?.name ?? name)}`, { ...kept, tags: tags.split(/[\s,]+/).filter(Boolean).join() });
    return `User ${row?.name ?? name} is kept.`;
  }} />`);
  const remove = (row) => openDialog(html`<${Dialog} title="Delete the user" name=${row.name} action="Delete" done=${again} text="Its connections are closed, and its permissions go with it."
    run=${async () => { await del(`users/${at(row.name)}`); return `${row.name} was deleted.`; }} />`);
  const permit = (row) => openDialog(html`<${Dialog} title="Permissions" done=${again} text="Regular expressions of names; empty: nothing." fields=${[
    { key: "user", label: "User", kind: "select", options: (users.data ?? []).map((each) => each.name), value: row?.user ?? users.data?.[0]?.name },
    { key: "vhost", label: "Virtual host", kind: "select", options: names, value: row?.vhost ?? names[0] },
    ...["configure", "write", "read"].map((key) => ({ key, label: key[0].toUpperCase() + key.slice(1), value: row?.[key] ?? ".*" })),
  ]} run=${async ({ user, vhost, ...patterns }) => { await put(`permissions/${at(vhost, user)}`, patterns); return `${user} may do that in ${vhost}.`; }} />`);
  const revoke = (row) => openDialog(html`<${Dialog} title=${`Take ${row.vhost} from ${row.user}`} name=${row.user} action="Take away" done=${again} text="The user may not enter the virtual host any more."
    run=${async () => { await del(`permissions/${at(row.vhost, row.user)}`); return "It was taken away."; }} />`);
  const addVhost = () => openDialog(html`<${Dialog} title="Add a virtual host" action="Add" done=${again} fields=${[{ key: "name", label: "Name", required: true }, { key: "description", label: "Description" }]}
    run=${async ({ name, description }) => { await put(`vhosts/${at(name)}`, { description }); return `${name} is there. Give users permissions in it.`; }} />`);
  const removeVhost = (row) => openDialog(html`<${Dialog} title="Delete the virtual host" name=${row.name} action="Delete" done=${again} text=${`Its queues go with it, and the ${count(row.messages)} messages in them.`}
    run=${async () => { await del(`vhosts/${at(row.name)}`); return `${row.name} was deleted.`; }} />`);
  return html`<${Page} title="Users" error=${users.error ?? permissions.error}>
    ${!users.error && html`<${Card} title="Users" id="users" flush actions=${html`<button class="primary" onClick=${() => edit(null)}>Add a user</button>`}>
      <${Table} label="Users" keyOf=${(row) => row.name} rows=${users.data} columns=${[
        { key: "name", label: "Name", sort: "name", show: (row) => html`<strong>${row.name}</strong>` },
        { key: "tags", label: "Tags", show: (row) => row.tags.map((tag) => html`<${Badge} key=${tag} kind=${tag === "administrator" ? "accent" : ""}>${tag}<//> `) },
        { key: "password", label: "Password", minor: true, show: (row) => row.password_hash ? row.hashing_algorithm : html`<span class="muted">none</span>` },
        { key: "do", label: "", num: true, show: (row) => html`<span class="row end"><button class="small" onClick=${() => edit(row)}>Edit</button><button class="danger small" onClick=${() => remove(row)}>Delete</button></span>` },
      ]} /><//>`}
    ${!permissions.error && html`<${Card} title="Permissions" id="permissions" flush actions=${html`<button onClick=${() => permit(null)}>Permit</button>`}>
      <${Table} label="Permissions" keyOf=${(row) => `${row.user}@${row.vhost}`} rows=${permissions.data} columns=${[
        { key: "user", label: "User", sort: "user", show: (row) => html`<strong>${row.user}</strong>` },
        { key: "vhost", label: "Vhost", sort: "vhost" },
        ...["configure", "write", "read"].map((key) => ({ key, label: key[0].toUpperCase() + key.slice(1), minor: key === "configure", show: (row) => html`<span class="mono">${row[key] || "–"}</span>` })),
        { key: "do", label: "", num: true, show: (row) => html`<span class="row end"><button class="small" onClick=${() => permit(row)}>Edit</button><button class="danger small" onClick=${() => revoke(row)}>Take away</button></span>` },
      ]} /><//>`}
    <${Card} title="Virtual hosts" id="vhosts" flush actions=${html`<button onClick=${addVhost}>Add</button>`}>
      <${Table} label="Virtual hosts" keyOf=${(row) => row.name} rows=${vhosts.data} columns=${[
        { key: "name", label: "Name", sort: "name", show: (row) => html`<strong>${row.name}</strong> ${row.protected_from_deletion && html`<${Badge}>protected<//>`}` },
        { key: "description", label: "Description", minor: true },
        { key: "messages", label: "Messages", num: true, sort: "messages", show: (row) => count(row.messages) },
        { key: "do", label: "", num: true, show: (row) => html`<button class="danger small" onClick=${() => removeVhost(row)}>Delete</button>` },
      ]} /><//>
  <//>`;
}
