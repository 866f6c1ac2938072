// The Node.js peer: `node node_ws.js PORT`, the package `ws` found through NODE_PATH. Any path; answers as servers.py
// does. SIGUSR1 collects all garbage; it needs `--expose-gc`.
const { writeFileSync } = require("fs");
const { WebSocketServer } = require("ws");
const server = new WebSocketServer({
  host: "127.0.0.1", port: Number(process.argv[2]), perMessageDeflate: false, backlog: 2048,
  handleProtocols: () => "fairlead.v1.msgpack",
});
const answer = (data) => JSON.stringify({ c: JSON.parse(data).c, ts: Date.now() / 1000 });
server.on("connection", (socket) => {
  socket.on("message", (data, binary) => socket.send(binary ? data : answer(data), { binary }));
});
process.on("SIGUSR1", () => {
  const started = process.hrtime.bigint();
  globalThis.gc();
  writeFileSync(process.env.BENCH_GC, String(Number(process.hrtime.bigint() - started) / 1e6));
});
