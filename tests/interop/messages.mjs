// The messages of the gateway and their bounds, §2 and §3 of docs/protocol.md, on the JSON twin: text to checked values
// with all defaults filled in, and back. Pure. Two rules cannot be seen behind JSON.parse and are not checked: keys that
// come twice, and integers written as 1.0.
const MIB = 1 << 20;

export class Violation extends Error {}
const NONE = Symbol("none"); // this default may also be written as null
export const ensure = (fact, why) => {
  if (!fact) throw new Violation(why);
};
const text = (min, max) => (v) => {
  ensure(typeof v === "string" && !/\p{Surrogate}/u.test(v), "not text");
  const length = [...v].length;
  ensure(length >= min && length <= max, "text out of bounds");
  return v;
};
const integer = (v) => (ensure(Number.isSafeInteger(v) && v >= 0, "not an integer"), v);
const number = (v) => (ensure(Number.isFinite(v) && v >= 0, "not a number"), v);
const boolean = (v) => (ensure(typeof v === "boolean", "not a boolean"), v);
const octets = (max) => (v) => {
  ensure(typeof v === "string" && /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/.test(v), "not base64");
  const data = Buffer.from(v, "base64");
  ensure(data.length <= max, "octets out of bounds");
  return data;
};
const choice = (...all) => (v) => (ensure(all.includes(v), "none of the choices"), v);
const object = (v) => (ensure(v !== null && typeof v === "object" && !Array.isArray(v), "not a map"), v);
const counts = (v) => {
  const all = Object.entries(object(v));
  ensure(all.length <= 1024, "too many entries");
  return new Map(all.map(([id, n]) => [ID(id), integer(n)]));
};
const group = (fields) => (v) => {
  const result = {};
  for (const [key, [check, fallback]] of Object.entries(fields)) {
    const value = Object.hasOwn(object(v), key) ? v[key] : undefined;
    if (value === undefined) ensure(fallback !== undefined, `${key} is missing`);
    if (value !== undefined && !(value === null && fallback === NONE)) result[key] = check(value);
    else if (fallback !== NONE) result[key] = fallback;
  }
  return result;
};
const ID = text(1, 64);
export const LIMITS = group({ message: [integer, MIB], chunk: [integer, 65536], window: [integer, 262144], queue: [integer, MIB] });
export const RETRY = group({ first: [integer, 1000], base: [integer, 1000], cap: [integer, 60000] });
const CAPS = group({ journal: [text(0, 64), ""], facts: [boolean, false] });
const ERROR = group({
  code: [ID], message: [text(0, 1024), ""], temporary: [boolean, false], details: [object, {}],
});
// A field is [check, default]; one without a default must come.
const MESSAGES = {
  2: group({
    sid: [ID], gen: [integer], now: [integer], hb: [integer], resumed: [boolean, false], have: [counts, new Map()],
    limits: [LIMITS, LIMITS({})], retry: [RETRY, RETRY({})], caps: [CAPS, {}],
  }),
  3: group({ ts: [integer, 0], echo: [integer, NONE], rtt: [number, NONE] }),
  4: group({
    id: [ID], method: [ID], payload: [octets(MIB), Buffer.alloc(0)], deadline: [integer, 60000],
    lane: [choice("control", "interactive", "bulk"), "interactive"], credit: [integer, 262144], attempt: [integer, 1],
    traceparent: [text(0, 64), ""], sig: [octets(1024), null], retry: [choice("never", "safe"), "never"],
  }),
  6: group({ id: [ID], n: [integer], kind: [ID], payload: [octets(65536), Buffer.alloc(0)] }),
  7: group({
    id: [ID], total: [integer], state: [choice("ok", "error", "cancelled", "timeout"), "ok"],
    payload: [octets(MIB), null], error: [ERROR, NONE], digest: [octets(64), null],
  }),
  8: group({ id: [ID], bytes: [integer] }),
  9: group({ id: [ID], why: [ID, "cancelled"] }),
  11: group({ s: [integer] }),
  12: group({ token: [text(0, 8192), ""], needed: [integer, 0] }),
  13: group({ why: [choice("shutdown", "rebalance", "scale", "age")], in: [integer, 0], retry: [RETRY, NONE] }),
  14: group({ code: [integer], why: [text(0, 1024), ""], retry: [integer, NONE] }),
};

export function decode(raw) {
  let value;
  try {
    value = JSON.parse(raw);
  } catch {
    throw new Violation("not JSON");
  }
  const t = integer(object(value).t);
  if (t >= 64) return null;
  ensure(Object.hasOwn(MESSAGES, t), `type ${t} is unknown, or not for agents`);
  return { t, ...MESSAGES[t](value) };
}

export const encode = (m) => JSON.stringify(m.payload ? { ...m, payload: m.payload.toString("base64") } : m);
