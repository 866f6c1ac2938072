// The Go peer: `server PORT`, gorilla/websocket on any path. Echoes binary messages; a text {"c": n} is answered with
// {"c": n, "ts": seconds}. SIGUSR1 collects all garbage, as in servers.py.
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
)

type stamped struct {
	C  int     `json:"c"`
	Ts float64 `json:"ts"`
}

// Small buffers: a link of an agent is idle, and gorilla's defaults would only be memory here.
var upgrader = websocket.Upgrader{
	ReadBufferSize: 1024, WriteBufferSize: 1024, Subprotocols: []string{"fairlead.v1.msgpack"},
	CheckOrigin: func(*http.Request) bool { return true },
}

func serve(w http.ResponseWriter, r *http.Request) {
	connection, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer connection.Close()
	for {
		kind, message, err := connection.ReadMessage()
		if err != nil {
			return
		}
		if kind == websocket.TextMessage {
			var asked stamped
			if json.Unmarshal(message, &asked) != nil {
				return
			}
			asked.Ts = float64(time.Now().UnixNano()) / 1e9
			message, _ = json.Marshal(asked)
		}
		if connection.WriteMessage(kind, message) != nil {
			return
		}
	}
}

func collect(signals chan os.Signal) {
	for range signals {
		started := time.Now()
		debug.FreeOSMemory()
		took := fmt.Sprint(float64(time.Since(started).Microseconds()) / 1e3)
		if err := os.WriteFile(os.Getenv("BENCH_GC"), []byte(took), 0o644); err != nil {
			panic(err)
		}
	}
}

func main() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	go collect(signals)
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[1], http.HandlerFunc(serve)))
}
