// Market data pushed from Node.js: `node market.js ws|socket.io PORT`, as market.py does.
const { createServer } = require("http");
const [kind, port] = [process.argv[2], Number(process.argv[3])];
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
const seconds = () => (performance.timeOrigin + performance.now()) / 1000;

function quote(stock, tick) {
  const o = 100 + stock;
  return { s: stock, t: seconds(), o, h: o + 1.25, l: o - 1.25, c: o + 0.5, v: 1000 + tick };
}

function packed(stock, tick) {
  const { t, o, h, l, c, v } = quote(stock, tick);
  const data = Buffer.alloc(50);
  data.writeUInt16LE(stock, 0);
  [t, o, h, l, c, v].forEach((value, i) => data.writeDoubleLE(value, 2 + 8 * i));
  return data;
}

async function push({ stocks, ticks, interval, binary }, send) {
  const begin = performance.now();
  for (let tick = 0; tick < ticks; tick++) {
    for (let stock = 0; stock < stocks; stock++) send(stock, tick, binary);
    await sleep(Math.max(0, (begin - performance.now()) / 1000 + (tick + 1) * interval));
  }
}

if (kind === "ws") {
  const { WebSocketServer } = require("ws");
  const server = new WebSocketServer({
    host: "127.0.0.1", port, perMessageDeflate: false, backlog: 2048, handleProtocols: () => "fairlead.v1.msgpack",
  });
  const send = (stock, tick, binary) => {
    const data = binary ? packed(stock, tick) : JSON.stringify(quote(stock, tick));
    for (const client of server.clients) client.send(data, { binary });
  };
  server.on("connection", (socket) => socket.on("message", (data) => push(JSON.parse(data).push, send)));
} else {
  const { Server } = require("socket.io");
  const http = createServer();
  const server = new Server(http, { perMessageDeflate: false });
  const send = (stock, tick, binary) => server.emit("quote", binary ? packed(stock, tick) : quote(stock, tick));
  server.on("connection", (socket) => socket.on("push", (asked) => push(asked.push, send)));
  http.listen(port, "127.0.0.1");
}
