// Market data pushed from Node.js: `node market.js ws|socket.io PORT`, as market.py does.
const { createServer } = require("http");
const [kind, port] = [process.argv[2], Number(process.argv[3])];
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
const seconds = () => Number(process.hrtime.bigint()) / 1e9; // the clock that CPython calls monotonic

const TIMER = 0.0015;

function quote(stock, tick, at) {
  const o = 100 + stock;
  return { s: stock, t: at, o, h: o + 1.25, l: o - 1.25, c: o + 0.5, v: 1000 + tick };
}

function packed(stock, tick, at) {
  const { t, o, h, l, c, v } = quote(stock, tick, at);
  const data = Buffer.alloc(50);
  data.writeUInt16LE(stock, 0);
  [t, o, h, l, c, v].forEach((value, i) => data.writeDoubleLE(value, 2 + 8 * i));
  return data;
}

async function push({ stocks, ticks, interval, binary }, send) {
  const begin = seconds();
  for (let tick = 0; tick < ticks; tick++) {
    const due = begin + tick * interval;
    await sleep(Math.max(0, due - seconds()));
    const at = Math.min(seconds(), due + TIMER);
    for (let stock = 0; stock < stocks; stock++) send(stock, tick, at, binary);
  }
}

if (kind === "ws") {
  const { WebSocketServer } = require("ws");
  const server = new WebSocketServer({
    host: "127.0.0.1", port, perMessageDeflate: false, backlog: 2048, handleProtocols: () => "fairlead.v1.msgpack",
  });
  const send = (stock, tick, at, binary) => {
    const data = binary ? packed(stock, tick, at) : JSON.stringify(quote(stock, tick, at));
    for (const client of server.clients) client.send(data, { binary });
  };
  server.on("connection", (socket) => socket.on("message", (data) => push(JSON.parse(data).push, send)));
} else {
  const { Server } = require("socket.io");
  const http = createServer();
  const server = new Server(http, { perMessageDeflate: false });
  const send = (stock, tick, at, binary) => server.emit("quote", binary ? packed(stock, tick, at) : quote(stock, tick, at));
  server.on("connection", (socket) => socket.on("push", (asked) => push(asked.push, send)));
  http.listen(port, "127.0.0.1");
}
