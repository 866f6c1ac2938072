// The Node.js peer: `node node_ws.js PORT`, the package `ws` found through NODE_PATH. Echoes on any path.
const { WebSocketServer } = require("ws");
const server = new WebSocketServer({
  host: "127.0.0.1", port: Number(process.argv[2]), perMessageDeflate: false, backlog: 2048,
  handleProtocols: () => "fairlead.v1.msgpack",
});
server.on("connection", (socket) => socket.on("message", (data, binary) => socket.send(data, { binary })));
