// The client's half of RFC 6455: the handshake with an Authorization header, which the WebSocket of browsers and of Node
// cannot send, then frames. agent.mjs opens one per link. It knows nothing of Fairlead but the close code of binary
// messages, and never connects again by itself.
import { createHash, randomBytes } from "node:crypto";
import http from "node:http";
import https from "node:https";

const LARGEST = 1 << 20; // what an agent must accept (§11)
const LINGER = 5000; // for the answer to a close frame (§9)

export class Socket {
  constructor(tcp, onText, onClose) {
    Object.assign(this, { tcp, onText, onClose, input: Buffer.alloc(0), parts: [], size: 0 });
    this.over = this.deaf = false; // deaf: what follows a violation is not read
    tcp.setNoDelay(true);
    tcp.setTimeout(0);
    tcp.on("data", (data) => this.feed(data)).on("error", () => {}).on("close", () => this.ended(1006, false));
  }

  static open(url, token, protocol, timeout) {
    return new Promise((resolve) => {
      const key = randomBytes(16).toString("base64");
      const accept = createHash("sha1").update(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64");
      const headers = {
        Connection: "Upgrade", Upgrade: "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Protocol": protocol, Authorization: `Bearer ${token}`,
      };
      const target = url.replace(/^ws/, "http");
      const request = (target.startsWith("https") ? https : http).get(target, { headers, agent: false });
      const timer = setTimeout(() => request.destroy(new Error("timeout")), timeout);
      const done = (answer) => (clearTimeout(timer), resolve(answer));
      request.on("error", (e) => done({ status: 0, why: e.message }));
      request.on("response", (r) => {
        const wait = /^\d+$/.test(r.headers["retry-after"] ?? "") ? Number(r.headers["retry-after"]) : undefined;
        request.destroy();
        done({ status: r.statusCode, retryAfter: wait });
      });
      request.on("upgrade", (r, tcp, head) => {
        if (r.headers["sec-websocket-accept"] === accept && r.headers["sec-websocket-protocol"] === protocol)
          return done({ tcp, head });
        tcp.destroy();
        done({ status: 101, why: "the answer of the upgrade names no subprotocol, or is not for this key" });
      });
    });
  }

  frame(opcode, payload) {
    if (this.tcp.destroyed || this.tcp.writableEnded) return;
    const size = payload.length;
    const head = Buffer.alloc(size < 126 ? 2 : size < 65536 ? 4 : 10);
    head[0] = 0x80 | opcode;
    head[1] = 0x80 | (size < 126 ? size : size < 65536 ? 126 : 127);
    if (head.length === 4) head.writeUInt16BE(size, 2);
    if (head.length === 10) head.writeBigUInt64BE(BigInt(size), 2);
    const mask = randomBytes(4);
    const masked = Buffer.allocUnsafe(size);
    for (let i = 0; i < size; i++) masked[i] = payload[i] ^ mask[i & 3];
    this.tcp.write(Buffer.concat([head, mask, masked]));
  }

  send(text) {
    if (!this.over) this.frame(1, Buffer.from(text));
  }

  close(code) {
    if (this.over) return;
    const payload = Buffer.alloc(2);
    payload.writeUInt16BE(code);
    this.frame(8, payload);
    this.ended(code, true);
  }

  drop() { // the peer said bye and does not close
    this.ended(1006, false);
    this.tcp.destroy();
  }

  refuse(code) {
    this.deaf = true;
    this.close(code);
  }

  ended(code, own) {
    if (this.over) return;
    this.over = true;
    const timer = setTimeout(() => this.tcp.destroy(), LINGER);
    this.tcp.on("close", () => clearTimeout(timer));
    this.onClose(code, own);
  }

  feed(data) {
    if (this.deaf) return;
    this.input = this.input.length ? Buffer.concat([this.input, data]) : data;
    while (this.input.length >= 2) {
      const b = this.input;
      const [fin, opcode, short] = [b[0] >> 7, b[0] & 15, b[1] & 127];
      const start = short === 126 ? 4 : short === 127 ? 10 : 2;
      if (b.length < start) return;
      const size = start === 2 ? short : start === 4 ? b.readUInt16BE(2) : Number(b.readBigUInt64BE(2));
      if (b[0] & 0x70 || b[1] & 0x80 || (opcode >= 8 && (!fin || size > 125))) return this.refuse(1002);
      if (opcode < 8 && this.size + size > LARGEST) return this.refuse(1009);
      if (b.length < start + size) return;
      const payload = b.subarray(start, start + size);
      this.input = b.subarray(start + size);
      if (opcode === 8) {
        const code = size >= 2 ? payload.readUInt16BE() : 1005;
        if (!this.over) this.frame(8, payload.subarray(0, 2));
        this.ended(code, false);
        this.tcp.end();
        return;
      }
      if (this.over || opcode === 10) continue;
      if (opcode === 9) this.frame(10, payload);
      else if (opcode > 2 || (opcode === 0) === !this.parts.length) return this.refuse(1002);
      else {
        if (opcode) this.binary = opcode === 2;
        this.size += size;
        this.parts.push(payload);
        if (!fin) continue;
        const whole = Buffer.concat(this.parts);
        [this.parts, this.size] = [[], 0];
        if (this.binary) return this.refuse(4501);
        let text;
        try {
          text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(whole);
        } catch {
          return this.refuse(1007);
        }
        this.onText(text);
      }
    }
  }
}
