// An agent in another language: docs/protocol.md in JavaScript, JSON twin, Node 18 or newer and nothing beside it.
// test_interop.py runs it against real gateways. It was written from that page alone and shares no code with the
// Python SDK: what works here is what the page says. The section that a rule comes from is named as §n.
//
//   AGENT_TOKEN=… node agent.mjs ws://host:port[,ws://…] edge-17 [--orders]
//
// It tells what it does as JSON lines on stdout. With --orders its method `exec` is run by orders on stdin, one JSON
// object a line, so that `fairlead mock-gateway` can play conversations to it (§14). SIGUSR2 makes it open a second link.
import { randomBytes, randomUUID } from "node:crypto";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { LIMITS, RETRY, Violation, decode, encode, ensure } from "./messages.mjs";
import { Socket } from "./socket.mjs";

const LONGEST_TIMER = 2 ** 31 - 1; // more, and Node fires at once
const MOST_STREAMS = 1024; // the gateway stops at 1,000 open commands (§11)
const MOST_EVENTS = 1024;
const REST = 16384; // of a message, beside its payload (§11)
const REMEMBERED = 2048; // 1,024 ids at least (§5), and as many that ran beside them
const tell = (at, more = {}) => process.stdout.write(JSON.stringify({ at, ...more }) + "\n");

// ---- one connection: what is counted anew on each ----

class Link {
  constructor(agent, tcp, over) {
    Object.assign(this, { agent, sent: 0, stored: 0, order: [], welcomed: 0, code: 0 });
    this.heard = this.spoke = performance.now();
    this.over = over; // told once: how it ended, or that its slot came
    this.socket = new Socket(tcp, (raw) => this.read(raw), (code, own) => this.closed(code, own));
    this.clock = setInterval(() => this.tick(), 50);
  }

  send(message) {
    this.spoke = performance.now();
    this.socket.send(encode(message));
  }

  number(message, stream = null) { // §6
    this.sent += 1;
    this.order.push([message, stream]);
    this.send(message);
  }

  tick() { // §4, heartbeat
    const now = performance.now();
    const hb = this.welcomed ? this.agent.hb : Math.min(this.agent.hb, 10_000);
    if (now - this.spoke >= hb) this.send({ t: 3, ts: Math.trunc(now) });
    if (now - this.heard > (this.welcomed ? 2.5 * hb : Math.max(2.5 * hb, 30_000))) this.socket.close(4008);
  }

  read(raw) {
    this.heard = performance.now();
    if (![this.agent.link, this.agent.next].includes(this)) return; // left: whatever still arrives is ignored (§4)
    try {
      const message = decode(raw);
      if (message) this.agent.take(this, message);
    } catch (e) {
      if (!(e instanceof Violation)) throw e;
      tell("violation", { why: e.message });
      this.socket.send(encode({ t: 14, code: 4500, why: e.message }));
      this.socket.close(4500);
    }
  }

  closed(code, own) {
    clearInterval(this.clock);
    clearTimeout(this.slot);
    clearTimeout(this.unclosed);
    if (this.bye && [1005, 1006].includes(code)) [code, own] = [this.bye.code, false]; // it announced the close frame (§9)
    tell("closed", { code, own, replaced: this.agent.link !== this || !!this.agent.next });
    this.agent.lost(this, code, own);
    this.end({ code, own, comeBack: this.comeBack ?? (this.slot && code === 4000 ? this.young() : undefined) });
  }

  young() { // the delay behind a drain (§9)
    return performance.now() - this.welcomed > 5000 ? 0 : 1000 * Math.random();
  }

  leave() { // another one is in use
    clearTimeout(this.slot);
    this.socket.send(encode({ t: 14, code: 1000, why: "moved" }));
    this.socket.close(1000);
  }

  end(how) { // the agent dials again; the link itself is in use until the next one is welcomed
    this.over({ ...how, lived: this.welcomed ? performance.now() - this.welcomed : 0 });
  }
}

// ---- one command (§5, §7): its handler writes, reads and ends ----

class Stopped extends Error {}

class Stream {
  constructor(agent, cmd) {
    Object.assign(this, { agent, id: cmd.id, room: cmd.credit, next: 0, held: [], heldBytes: 0, cursor: 0 });
    Object.assign(this, { inbox: [], inNext: 0, taken: 0, owed: 0, inRoom: agent.limits.window, eof: false });
    Object.assign(this, { ended: false, waiting: [], stopping: new AbortController() });
  }

  wake() {
    for (const go of this.waiting.splice(0)) go();
  }

  async until(condition) {
    while (!this.ended && !condition()) await new Promise((go) => this.waiting.push(go));
    if (this.ended) throw new Stopped();
  }

  async write(data, kind = "stdout") {
    for (let at = 0; at < data.length; ) {
      let piece;
      await this.until(() => {
        const { chunk, window } = this.agent.limits;
        piece = data.subarray(at, at + Math.max(1, Math.min(chunk, window >> 1))); // half a window always comes free (§7)
        return this.heldBytes + piece.length <= window;
      });
      this.held.push({ t: 6, id: this.id, n: this.next++, kind, payload: piece });
      this.heldBytes += piece.length;
      at += piece.length;
      this.pump();
    }
  }

  async read() { // null is the end of the input
    while (!this.inbox.length) { // looked at again behind each await: the link may be lost in between, and its input
      if (this.eof) return null;
      await this.until(() => this.inbox.length || this.eof);
    }
    const data = this.inbox.shift();
    this.taken += 1;
    this.grant(data.length);
    return data;
  }

  grant(bytes) { // never on the old link once hello was said on a new one (§9): then it is owed
    this.owed += bytes;
    if (!this.owed || this.agent.next || !this.agent.link) return;
    this.inRoom += this.owed;
    this.agent.link.send({ t: 8, id: this.id, bytes: this.owed });
    this.owed = 0;
  }

  pause(ms) {
    return sleep(ms, undefined, { signal: this.stopping.signal });
  }

  end(state, more = {}) {
    if (this.ended) return;
    this.stop();
    const size = more.payload?.length ?? 0;
    const most = ((this.agent.limits.message - REST) * 3) / 4; // base64 adds a third (§11)
    if (size > most) {
      [state, more] = ["error", { error: { code: "result_too_large", message: `${size} bytes exceed max ${most}` } }];
    }
    this.held.push({ t: 7, id: this.id, total: this.next, state, ...more });
    this.pump();
  }

  cut() { // cancelled, or out of time: what has no credit is dropped, so that the end waits for nothing (§5)
    if (!this.agent.link?.welcomed) return;
    const rest = this.held.splice(this.cursor);
    for (const m of rest) if (m.t === 6) [this.heldBytes, this.next] = [this.heldBytes - m.payload.length, Math.min(this.next, m.n)];
    const end = rest.find((m) => m.t === 7);
    if (end) this.held.push({ ...end, total: this.next });
    this.pump();
  }

  stop() {
    this.ended = true;
    clearTimeout(this.deadline);
    this.stopping.abort();
    this.wake();
  }

  pump() {
    const link = this.agent.link;
    while (link?.welcomed && this.cursor < this.held.length) {
      const message = this.held[this.cursor];
      const size = message.payload && message.t === 6 ? message.payload.length : 0;
      if (size > this.room) return;
      this.room -= size;
      this.cursor += 1;
      link.number(message, this);
    }
  }

  drop(count) { // the first `count` of what is held are stored
    for (const message of this.held.splice(0, count)) if (message.t === 6) this.heldBytes -= message.payload.length;
    this.cursor = Math.max(0, this.cursor - count);
    this.wake();
  }

  resume(have, window, inNext) { // §8, step 2; the input comes from where hello wanted it
    [this.inbox, this.inNext, this.owed, this.eof] = [[], inNext, 0, false];
    this.drop(this.held.filter((m) => m.t === 6 && m.n < have).length);
    const first = this.held.length ? this.held[0].n ?? this.held[0].total : this.next;
    if (first !== have) {
      this.stop();
      const error = { code: "results_gap", message: "the gateway has lost some of the results that it had stored" };
      [this.held, this.heldBytes] = [[{ t: 7, id: this.id, total: have, state: "error", error }], 0];
    }
    [this.cursor, this.room, this.inRoom] = [0, window, window];
    this.pump();
  }
}

// ---- the agent ----

class Agent {
  constructor(urls, id, token, methods) {
    Object.assign(this, { urls, id, token, methods, boot: randomBytes(8).toString("hex"), conn: 0 });
    Object.assign(this, { link: null, next: null, hb: 10_000, limits: LIMITS({}), retry: RETRY({}), sid: null });
    Object.assign(this, { streams: new Map(), past: new Set(), events: [], eventCursor: 0, leaving: null });
    Object.assign(this, { final: false, notBefore: 0 });
  }

  async run() { // §10
    for (let k = 0; ; k++) {
      if (this.final) {
        this.link?.leave(); // nothing is to be sent on an old one any more
        return 3;
      }
      if (this.notBefore > performance.now()) await sleep(this.notBefore - performance.now());
      this.conn += 1;
      const url = this.urls[(this.conn - 1) % this.urls.length]; // what refused or was lost is not the next to be asked
      const answer = await Socket.open(`${url}/v1/link`, this.token, "fairlead.v1.json", 20_000);
      let wait;
      if (!answer.tcp) {
        tell("refused", answer);
        if ([400, 401, 403, 409, 426, 431].includes(answer.status)) wait = this.retry.cap * (0.5 + Math.random() / 2);
        else if (answer.retryAfter !== undefined) wait = answer.retryAfter * 1000 * (1 + Math.random() / 2);
      } else {
        const end = await new Promise((over) => this.greet(answer, over));
        if (this.leaving) return 0;
        if (this.final) continue;
        if (end.lived > 60_000) k = 0;
        wait = end.comeBack;
      }
      if (this.link && wait === undefined) k = Math.max(k, 1); // it moves, and is reached over its old link
      const ceiling = k ? Math.min(this.retry.cap, this.retry.base * 2 ** Math.min(Math.max(k - 4, 0), 16)) : this.retry.first;
      await sleep(Math.min(wait ?? Math.random() * ceiling, LONGEST_TIMER));
    }
  }

  greet({ tcp, head }, over) { // with a link in use it is a move (§9): that one stays until welcome
    const link = (this.next = new Link(this, tcp, over));
    const have = (link.have = {});
    for (const s of this.streams.values()) if (!s.ended) have[s.id] = s.taken;
    const resume = this.sid ? { sid: this.sid } : undefined;
    link.send({ t: 1, agent: this.id, boot: this.boot, conn: this.conn, sdk: "interop-js/1", facts: { lang: "js" }, have, resume });
    if (head.length) link.socket.feed(head);
  }

  lost(link, code, own) { // by its close, whoever made it
    if ([this.link, this.next].includes(link)) this.final ||= code >= 4500 && !own;
    if (this.next === link) {
      this.next = null; // the old link, if there is one, grants what was taken meanwhile
      for (const s of this.streams.values()) s.grant(0);
    } else if (this.link === link) {
      this.link = null;
      if (link.comeBack !== undefined) this.notBefore = performance.now() + link.comeBack;
      if (this.final || link.comeBack !== undefined) this.next?.socket.close(1000);
    }
  }

  take(link, m) {
    const s = this.streams.get(m.id);
    if (!link.welcomed) ensure([2, 3, 14].includes(m.t), `type ${m.t} before welcome`);
    if (m.t === 2) this.welcome(link, m);
    else if (m.t === 4) this.command(link, m);
    else if (m.t === 6 && s && !s.ended) {
      ensure(!s.eof && m.n === s.inNext && m.payload.length <= s.inRoom, "input out of order, or beyond the window");
      s.inNext += 1;
      s.inRoom -= m.payload.length;
      if (m.n < s.taken) return s.grant(m.payload.length); // it was taken over the link before
      s.inbox.push(m.payload);
      s.wake();
    } else if (m.t === 7 && s && !s.ended) {
      ensure(m.total === s.inNext, "an end of input that counts wrong");
      s.eof = true;
      s.wake();
    } else if (m.t === 8 && s) {
      s.room += m.bytes;
      s.pump();
    } else if (m.t === 9 && s) {
      s.cut();
      s.end(m.why === "deadline" ? "timeout" : "cancelled", { error: { code: "cancelled" } });
    }
    else if (m.t === 11) this.receipt(link, m.s);
    else if (m.t === 13) {
      if (m.retry) this.retry = m.retry;
      clearTimeout(link.slot);
      link.slot = setTimeout(() => link.end({ comeBack: link.young() }), Math.min(m.in, LONGEST_TIMER));
      tell("drain", { why: m.why, in: m.in });
    } else if (m.t === 14) {
      [link.bye, link.comeBack] = [m, m.retry];
      link.unclosed = setTimeout(() => link.socket.drop(), 5000); // §9: no close frame came
    }
  }

  welcome(link, m) { // §8
    ensure(!link.welcomed, "welcome twice");
    link.welcomed = performance.now();
    const old = this.link;
    Object.assign(this, { link, next: null, hb: m.hb, limits: m.limits, retry: m.retry, sid: m.sid });
    tell("welcome", { conn: this.conn, boot: this.boot, resumed: m.resumed, have: m.have.size });
    for (const s of [...this.streams.values()]) {
      if (m.have.has(s.id)) s.resume(m.have.get(s.id), m.limits.window, link.have[s.id] ?? 0);
      else this.forget(s);
    }
    for (this.eventCursor = 0; this.eventCursor < this.events.length; ) link.number(this.events[this.eventCursor++]);
    if (!old?.kept) old?.leave();
  }

  forget(s) {
    if (!s.ended) s.stop();
    this.streams.delete(s.id);
    this.past.add(s.id);
    if (this.past.size > REMEMBERED) this.past.delete(this.past.values().next().value);
  }

  command(link, m) { // §5
    const refuse = (error) => link.number({ t: 5, id: m.id, state: "refused", error });
    if (this.streams.has(m.id) || this.past.has(m.id)) return link.number({ t: 5, id: m.id, state: "duplicate" });
    const method = Object.hasOwn(this.methods, m.method) ? this.methods[m.method] : undefined;
    if (!method) return refuse({ code: "unknown_method", message: `this agent has no method «${m.method}»` });
    if (this.streams.size >= MOST_STREAMS) return refuse({ code: "busy", temporary: true });
    let payload;
    try {
      payload = m.payload.length ? JSON.parse(m.payload) : {};
    } catch {
      return refuse({ code: "invalid_arguments", message: "the payload is not JSON" });
    }
    const s = new Stream(this, m);
    this.streams.set(m.id, s);
    link.number({ t: 5, id: m.id });
    tell("run", { id: m.id, method: m.method, attempt: m.attempt });
    const late = () => s.cut() ?? s.end("timeout", { error: { code: "deadline", message: `${m.deadline} ms have passed` } });
    if (m.deadline === 0) return late();
    s.deadline = setTimeout(late, Math.min(m.deadline, LONGEST_TIMER));
    method(s, payload, this).then(
      (result) => s.end("ok", { payload: Buffer.from(JSON.stringify(result ?? null)) }),
      (e) => s.end("error", { error: { code: "handler_failed", message: String(e.message).slice(0, 500) } }),
    );
  }

  receipt(link, s) { // §6
    ensure(link.stored <= s && s <= link.sent, "a receipt that goes back, or is for what was never sent");
    for (const [message, stream] of link.order.splice(0, s - link.stored)) {
      if (message.t === 7) this.forget(stream);
      else if (message.t === 6) stream.drop(1);
      else if (message.t === 10) [this.events, this.eventCursor] = [this.events.slice(1), this.eventCursor - 1];
    }
    link.stored = s;
  }

  event(event) {
    const message = { t: 10, id: randomUUID(), time: Date.now(), ...event };
    if (message.qos === 0) return this.link?.welcomed ? (this.link.send(message), message.id) : null;
    if (this.events.length >= MOST_EVENTS) throw new Error("too many events wait for their receipt");
    this.events.push(message);
    if (this.link?.welcomed) (this.eventCursor += 1), this.link.number(message);
    return message.id;
  }

  leave() { // §9
    if (this.leaving) return;
    for (const s of this.streams.values()) s.end("cancelled", { error: { code: "cancelled", message: "the agent ends" } });
    const open = [this.link, this.next].filter(Boolean);
    this.leaving = true;
    if (!open.length) process.exit(0);
    for (const link of open) link.send({ t: 14, code: 1001, why: "the agent ends" });
    for (const link of open) link.socket.close(1001); // the process ends with its last socket, seconds later at most
  }
}

// ---- what it can do ----

const ordered = new Map(); // id → its stream, given the orders of stdin

const METHODS = {
  async echo(s, { text = "", input = false }) {
    for (const line of text.match(/[^\n]*\n|[^\n]+$/g) ?? []) await s.write(Buffer.from(line));
    let bytes = 0;
    for (let data; input && (data = await s.read()) !== null; bytes += data.length) await s.write(data);
    return { bytes };
  },
  async count(s, { n, pause = 0 }) {
    for (let i = 0; i < n; i++) {
      await s.write(Buffer.from(`${i}\n`));
      if (pause) await s.pause(pause);
    }
    return { n };
  },
  async flood(s, { bytes }) {
    for (let sent = 0; sent < bytes; sent += 65536) await s.write(Buffer.alloc(Math.min(65536, bytes - sent), "x"));
    return { bytes };
  },
  async large(s, { bytes }) {
    return "x".repeat(bytes);
  },
  async event(s, { type, qos = 1, body = null }, agent) {
    return { id: agent.event({ type, qos, payload: Buffer.from(JSON.stringify(body)) }) };
  },
};

const obey = async ({ order, id, payload, kind, type, qos }, agent) => { // §14
  const data = Buffer.from(payload ?? "", "base64");
  if (order === "event") return agent.event({ type, qos, payload: data });
  if (order === "leave") return agent.leave();
  const s = ordered.get(id);
  if (order === "write") await s.write(data, kind);
  else if (order === "end") s.end("ok", { payload: data });
  else if (order === "take") await s.read();
};

const [urls, id, mode] = process.argv.slice(2);
const onOrders = { exec: (s) => (ordered.set(s.id, s), new Promise(() => {})) };
const agent = new Agent(urls.split(","), id, process.env.AGENT_TOKEN, mode === "--orders" ? onOrders : METHODS);
tell("start", { boot: agent.boot });
if (mode === "--orders") {
  createInterface({ input: process.stdin }).on("line", (line) => {
    const order = JSON.parse(line); // each at once: a write that waits for credit holds up nothing but its stream
    obey(order, agent).then(
      () => process.stdout.write(JSON.stringify({ done: order.number }) + "\n"),
      (e) => tell("disobeyed", { line, why: String(e) }),
    );
  });
}
process.on("SIGTERM", () => agent.leave());
process.on("SIGUSR2", () => { // the older link is the gateway's to close
  if (agent.link) agent.link.kept = true;
  agent.link?.end({ comeBack: 0 });
});
agent.run().then((code) => {
  tell("ends", { code });
  process.stdin.destroy();
  process.exitCode = code;
});
