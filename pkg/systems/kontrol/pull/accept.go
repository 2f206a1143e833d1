package pull

import (
	"bytes"
	"net"
	"net/http"
	"time"
)

// Accept upgrades an agent's request and calls use with its connection, or answers with an error. It returns when use
// does, and closes the connection.
func Accept(w http.ResponseWriter, req *http.Request, use func(net.Conn)) {
	hijacker, ok := w.(http.Hijacker)
	if !ok || req.ProtoMajor != 1 || req.Header.Get("Upgrade") != Protocol {
		http.Error(w, "this is for agents of clusters: send an HTTP/1.1 request with the header Upgrade: "+Protocol,
			http.StatusUpgradeRequired)
		return
	}
	conn, rw, err := hijacker.Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(dialPatience))
	if _, err := conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + Protocol +
		"\r\n\r\n")); err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	early, err := rw.Reader.Peek(rw.Reader.Buffered())
	if err != nil {
		return
	}
	use(&buffered{Conn: conn, first: bytes.NewReader(bytes.Clone(early))})
}
