package builtin

import (
	"bufio"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
	podstrategy "k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// podLog returns a handler that sends a container's log, which the node's agent returns.
func podLog(req *http.Request, on kind.Connection) (http.Handler, error) {
	_, _, name := on.Target()
	o, err := logOptions(req, name)
	if err != nil {
		return nil, err
	}
	location, transport, err := podstrategy.LogLocation(req.Context(), podGetter{on}, agents{on}, name, o)
	if err != nil {
		return nil, err
	}
	var in io.ReadCloser
	if location != nil { // otherwise the pod is not bound yet, and its log is empty
		streamer := &genericrest.LocationStreamer{
			Location: location, Transport: transport, ContentType: "text/plain", Flush: o.Follow,
			ResponseChecker: genericrest.NewGenericHttpResponseChecker(corev1.Resource("pods/log"), name),
			RedirectChecker: genericrest.PreventRedirects,
		}
		if in, _, _, err = streamer.InputStream(req.Context(), "", ""); err != nil {
			return nil, err
		}
	}
	return logHandler{on: on, in: in, follow: o.Follow}, nil
}

// logHandler sends a log to the client and closes it.
type logHandler struct {
	on     kind.Connection
	in     io.ReadCloser
	follow bool
}

func (h logHandler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if h.in == nil {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusNoContent)
		return
	}
	defer h.in.Close()
	if wsstream.IsWebSocketRequest(req) {
		// wsstream's reader drops data that arrives together with io.EOF, as at the end of a body of known length. A
		// buffer separates the two.
		if err := wsstream.NewReader(bufio.NewReader(h.in), true, wsstream.NewDefaultReaderProtocols()).Copy(w, req); err !=
			nil {
			h.on.Fail(w, req, err)
		}
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	if !h.follow {
		_, _ = io.Copy(w, h.in)
		return
	}
	rc := http.NewResponseController(w)
	_ = rc.Flush()
	buf := make([]byte, 32<<10)
	for {
		n, err := h.in.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return // the client has disconnected
			}
			_ = rc.Flush()
		}
		if err != nil {
			return // the log or the container has ended
		}
	}
}
