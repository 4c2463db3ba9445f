// Numbers and times as people read them.
const numbers = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n) => (n == null ? "–" : numbers.format(n));
export const compact = (n) => (n == null ? "–" : n < 10000 ? numbers.format(Math.round(n)) : short.format(n));
export const rate = (n) => (n == null ? "–" : n === 0 ? "0" : n < 10 ? n.toFixed(1) : compact(Math.round(n)));

export function bytes(n) {
  if (n == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (n >= 1024 && place < units.length - 1) {
    n /= 1024;
    place += 1;
  }
  return `${place && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[place]}`;
}

export function age(ms) {
  if (ms == null) return "–";
  const s = ms / 1000;
  if (s < 1) return `${Math.round(ms)} ms`;
  if (s < 60) return `${s < 9.95 ? s.toFixed(1) : Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function time(ms) {
  if (!ms) return "–";
  const at = new Date(ms);
  const clock = at.toLocaleTimeString("en-GB", { hour12: false });
  const today = at.toDateString() === new Date().toDateString();
  return `${today ? "" : `${at.toLocaleDateString("en-CA")} `}${clock}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
