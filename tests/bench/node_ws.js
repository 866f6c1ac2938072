// The Node.js peer: `node node_ws.js PORT`, the package `ws` found through NODE_PATH. Echoes on any path.
// SIGUSR1 collects all garbage, as in servers.py; it needs `--expose-gc`.
const { writeFileSync } = require("fs");
const { WebSocketServer } = require("ws");
const server = new WebSocketServer({
  host: "127.0.0.1", port: Number(process.argv[2]), perMessageDeflate: false, backlog: 2048,
  handleProtocols: () => "fairlead.v1.msgpack",
});
server.on("connection", (socket) => socket.on("message", (data, binary) => socket.send(data, { binary })));
process.on("SIGUSR1", () => {
  const started = process.hrtime.bigint();
  globalThis.gc();
  writeFileSync(process.env.BENCH_GC, String(Number(process.hrtime.bigint() - started) / 1e6));
});
