// What the node is asked for, and how often. Nothing is asked while nobody looks.
import { useCallback, useEffect, useRef, useState } from "./vendor/preact-htm.js";

export class Failed extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

let onOver = () => {};
/** Called when the session is over. */
export const whenOver = (call) => (onOver = call);

async function ask(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      body: body === undefined ? undefined : JSON.stringify(body),
      headers: { "Quorate-Page": "1", "Content-Type": "application/json", Accept: "application/json" },
    });
  } catch {
    throw new Failed(0, "The node does not answer. It is asked again in a few seconds.");
  }
  const text = await answer.text();
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    value = { reason: text };
  }
  if (answer.ok) return value;
  // 401 is also what a user is told who may not see something.
  if (answer.status === 401 && path !== "ui/session" && !(await session()).name) onOver();
  throw new Failed(answer.status, value?.reason || `${answer.status} ${answer.statusText}`);
}

export const session = () => ask("GET", "ui/session");
export const login = (username, password) => ask("POST", "ui/session", { username, password });
export const logout = () => ask("DELETE", "ui/session");

export const get = (path) => ask("GET", `api/${path}`);
export const put = (path, body = {}) => ask("PUT", `api/${path}`, body);
export const post = (path, body = {}) => ask("POST", `api/${path}`, body);
export const patch = (path, body) => ask("PATCH", `api/${path}`, body);
export const del = (path, body) => ask("DELETE", `api/${path}`, body);
export const native = (path) => ask("GET", `v1/${path}`);

/** A path of these names, each of which may hold slashes. */
export const at = (...names) => names.map(encodeURIComponent).join("/");

export function query(params) {
  const kept = Object.entries(params).filter(([, value]) => value !== "" && value != null && value !== false);
  return new URLSearchParams(kept).toString();
}

/**
 * What `path` answers, asked for again `every` ms while the page is seen. `path` null: nothing.
 * While it cannot be had, `data` is what was told last, and `error` says why.
 */
export function usePoll(path, every = 5000, fetcher = get) {
  const [state, setState] = useState({ path: null, data: null, error: null });
  const again = useRef(() => {});
  useEffect(() => {
    if (path === null) return undefined;
    let timer = null;
    let ended = false;
    let asking = false;
    const look = async () => {
      clearTimeout(timer);
      if (asking || ended) return;
      asking = true;
      try {
        const data = await fetcher(path);
        if (!ended) setState({ path, data, error: null });
      } catch (error) {
        if (!ended) setState((old) => ({ path, data: old.path === path ? old.data : null, error }));
      }
      asking = false;
      if (!ended && !document.hidden && every) timer = setTimeout(look, every);
    };
    const onSeen = () => (document.hidden ? clearTimeout(timer) : look());
    document.addEventListener("visibilitychange", onSeen);
    again.current = look;
    look();
    return () => {
      ended = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onSeen);
    };
  }, [path, every]);
  const refresh = useCallback(() => again.current(), []);
  // What another path answered is not this one's, but better than nothing while a list is paged.
  return { data: state.data, error: state.error, stale: state.path !== path, refresh };
}
