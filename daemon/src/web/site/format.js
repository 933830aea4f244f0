// Figures as people read them, as the terminal's views write them.

/** A count with a comma between thousands. */
export function count(number) {
  return Math.round(number).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

export function counted(number, thing) {
  return `${count(number)} ${thing}${number === 1 ? "" : "s"}`;
}

export function bytes(number) {
  if (number === undefined || number === null) return "–";
  const value = Math.max(0, number);
  // Whatever would be rounded to a thousand has the next unit.
  if (value < 999.5) return `${Math.round(value)} B`;
  if (value < 999_950) return `${(value / 1e3).toFixed(1)} kB`;
  if (value < 999_950_000) return `${(value / 1e6).toFixed(1)} MB`;
  if (value < 999_995_000_000) return `${(value / 1e9).toFixed(2)} GB`;
  return `${(value / 1e12).toFixed(2)} TB`;
}

export function rate(number) {
  return number === undefined || number === null ? "–" : `${bytes(number)}/s`;
}

/** A time in seconds, in at most two units. */
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** The same where one unit is enough. */
export function ago(seconds) {
  if (seconds === undefined || seconds === null) return "never";
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s ago`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ago`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ago`;
  return `${Math.floor(whole / 86400)} d ago`;
}

/** A short time in seconds. */
export function brief(seconds) {
  if (!isNumber(seconds)) return "–";
  return seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`;
}

/** A share, 0 to 1, in whole percent: 100 only at the end. */
export function percent(share) {
  return `${Math.floor(100 * share + 1e-6)} %`;
}

export function fixed(number, digits) {
  return isNumber(number) ? number.toFixed(digits).replace(/^-(0(\.0*)?)$/, "$1") : "–";
}

/** The end of a peer id, by which people tell peers apart. */
export function short(id) {
  return id.length > 8 ? id.slice(-8) : id;
}

/** The end of the id, and the name where there is one. The id comes first, so that no name hides it: anybody may take any. */
export function named(id, name) {
  return name ? `${short(id)} · ${name}` : short(id);
}

/** The time of milliseconds since 1970 on this browser's clock, behind the date where that is not today's. */
export function clock(wall) {
  const date = new Date(wall);
  const two = (number) => String(number).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

/** The time zone of this browser's clock. */
export function zone() {
  return new Intl.DateTimeFormat().resolvedOptions().timeZone ?? "its time zone";
}

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}
