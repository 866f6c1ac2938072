// The peer in Go on gws: `server PORT`, any path. Echoes binary messages; a text {"c": n} is answered with
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

	"github.com/lxzan/gws"
)

type stamped struct {
	C  int     `json:"c"`
	Ts float64 `json:"ts"`
}

type echo struct{ gws.BuiltinEventHandler }

func (echo) OnMessage(socket *gws.Conn, message *gws.Message) {
	defer message.Close()
	if message.Opcode == gws.OpcodeBinary {
		_ = socket.WriteMessage(gws.OpcodeBinary, message.Bytes())
		return
	}
	var asked stamped
	if json.Unmarshal(message.Bytes(), &asked) != nil {
		socket.NetConn().Close()
		return
	}
	asked.Ts = float64(time.Now().UnixNano()) / 1e9
	answer, _ := json.Marshal(asked)
	_ = socket.WriteMessage(gws.OpcodeText, answer)
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
	// Small buffers, as for gorilla.
	upgrader := gws.NewUpgrader(&echo{}, &gws.ServerOption{
		ReadBufferSize: 1024, WriteBufferSize: 1024, SubProtocols: []string{"fairlead.v1.msgpack"},
	})
	serve := func(w http.ResponseWriter, r *http.Request) {
		socket, err := upgrader.Upgrade(w, r)
		if err == nil {
			go socket.ReadLoop() // not in the handler's goroutine: the library's own way to let that one's buffers go
		}
	}
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[1], http.HandlerFunc(serve)))
}
