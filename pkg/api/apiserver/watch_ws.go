package apiserver

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"golang.org/x/net/websocket"

	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// webSocket serves a watch over a WebSocket: one message per event, text for JSON and binary for protobuf.
func (v *watching) webSocket(w http.ResponseWriter, req *http.Request, cancel context.CancelFunc,
	watcher *cache.Watcher, initial []*cache.Entry, sync int64) {
	websocket.Handler(func(ws *websocket.Conn) {
		defer ws.Close()
		ws.PayloadType = websocket.TextFrame
		if v.n.media == mediaProto {
			ws.PayloadType = websocket.BinaryFrame
		}
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			defer cancel()
			_, _ = io.Copy(io.Discard, ws) // detect the end of the connection; the client sends nothing of use
		}()
		v.message = &bytes.Buffer{}
		v.send = func() error {
			_, err := ws.Write(v.message.Bytes())
			v.message.Reset()
			return err
		}
		if err := v.run(watcher, initial, sync); err != nil {
			v.s.log.Debug("watch ended", "resource", v.t.Resource.Plural, "error", err)
		}
		_ = ws.Close()
		<-gone
	}).ServeHTTP(w, req)
}
