// Requests to the daemon. Only its own address is ever asked.

/** An answer as JSON; an error says what the daemon says. */
export async function get(path, options = {}) {
  const answer = await fetch(`/api/v1/${path}`, { cache: "no-store", ...options });
  if (answer.ok) return answer.json();
  let said = {};
  try { said = await answer.json(); } catch { /* no JSON: its status is all that is known */ }
  const error = new Error(said.error ?? `the daemon answers ${answer.status}`);
  error.hint = said.hint ?? "";
  error.status = answer.status;
  throw error;
}

/** The records after a number. */
export async function records(after) {
  const answer = await fetch(`/api/v1/records?after=${after}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(`the daemon answers ${answer.status}`);
  const text = await answer.text();
  return text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

const KEY = "murmur-token";

/** The token comes as a fragment, which browsers send to nobody, and is kept for this tab alone. */
export function takeToken() {
  const found = location.hash.match(/^#token=([0-9a-f]{64})$/);
  if (!found) return;
  keepToken(found[1]);
  history.replaceState(null, "", "#run");
}

export function keepToken(token) {
  try { sessionStorage.setItem(KEY, token); } catch { /* asked for again then */ }
}

export function dropToken() {
  try { sessionStorage.removeItem(KEY); } catch { /* there is none */ }
}

export function token() {
  try { return sessionStorage.getItem(KEY); } catch { return null; }
}
