// Requests to the program and its answers (crates/web/src/api.rs).

/** One uplink. */
export interface Link {
  name: string;
  shown: string;
  status: string | null;
  paused: boolean;
  portal: boolean;
  technology: string | null;
  signal_dbm: number | null;
  operator: string | null;
  sent_bps: number;
  received_bps: number;
  round_trip_ms: number | null;
  loss: number | null;
  left_bytes: number | null;
  cap_bytes: number | null;
  backup: boolean;
}

export interface Lane {
  name: string;
  shown: string;
  strategy: string;
}

export interface ClientEvent {
  number: number;
  ago_ms: number;
  text: string;
}

/** Place in the names, sent and received in kbit/s, round trip in ms, loss in thousandths, usable. */
export type LinkRow = [number, number, number, number | null, number, boolean];
/** Number, time in ms, goodput up and down in kbit/s, the encoder's target in kbit/s, links. */
export type Row = [number, number, [number, number] | null, number | null, LinkRow[]];

export interface State {
  run: string;
  now_ms: number;
  read_only: boolean;
  away: string | null;
  age_ms: number | null;
  name: string | null;
  role: string | null;
  session: string | null;
  no_session: string | null;
  target_bps: number | null;
  p99_ms: number | null;
  stalls: number;
  stalled_ms: number;
  links: Link[];
  lanes: Lane[];
  strategies: string[];
  events: ClientEvent[];
  samples: { names: string[]; rows: Row[] };
}

/** The token is missing or wrong. */
export class Unauthorized extends Error {}

const STORED = 'roadweave token';
const WAIT_MS = 5_000;

/** The token of the address, which is then removed there, or the stored one. */
export function token(): string | null {
  const found = /^#token=([0-9a-fA-F]{64})$/.exec(location.hash)?.[1];
  if (found) {
    keep(found);
    history.replaceState(null, '', location.pathname);
  }
  try {
    return found ?? localStorage.getItem(STORED);
  } catch {
    return found ?? null;
  }
}

export function keep(value: string): void {
  try {
    localStorage.setItem(STORED, value);
  } catch {
    // Without storage the address with the token is needed each time.
  }
}

/** Deletes the token from this browser. */
export function forget(): void {
  try {
    localStorage.removeItem(STORED);
  } catch {
    // Without storage there is nothing to delete.
  }
}

export async function read(token: string, after: number): Promise<State> {
  return (await ask(token, `state?after=${after}`)) as State;
}

/** Changes a setting; returns a notice for the user, if there is one. */
export async function change(token: string, what: string, change: object): Promise<string | null> {
  const answer = await ask(token, what, change);
  return (answer as { notice: string | null }).notice;
}

async function ask(token: string, what: string, content?: object): Promise<unknown> {
  const headers: Record<string, string> = { Authorization: `Bearer ${token}` };
  if (content) headers['Content-Type'] = 'application/json';
  const answer = await fetch(`/api/v1/${what}`, {
    method: content ? 'POST' : 'GET',
    headers,
    body: content ? JSON.stringify(content) : null,
    cache: 'no-store',
    credentials: 'omit',
    redirect: 'error',
    signal: AbortSignal.timeout(content ? 3 * WAIT_MS : WAIT_MS),
  });
  if (answer.status === 401) throw new Unauthorized('the token is missing or incorrect');
  const value: unknown = await answer.json();
  if (!answer.ok) throw new Error((value as { error?: string }).error ?? `${answer.status}`);
  return value;
}
