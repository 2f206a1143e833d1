package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/coracle-dev/coracle/pkg/node/pod"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

const (
	streamIdle     = 4 * time.Hour
	streamCreation = 30 * time.Second
)

// running returns the running container of a request, or sends an error and returns nil.
func (s *Server) running(w http.ResponseWriter, r *http.Request) *pod.Instance {
	p, run, err := s.find(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return nil
	}
	if run == nil || run.State != runtime.Running {
		http.Error(w, fmt.Sprintf("container %q of pod %s/%s is not running", r.PathValue("container"), p.Namespace, p.Name),
			http.StatusNotFound)
		return nil
	}
	return run
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	o, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if run := s.running(w, r); run != nil {
		remotecommand.ServeExec(w, r, executor{s}, "", "", run.ID, r.URL.Query()["command"], o, streamIdle, streamCreation,
			remotecommand.SupportedStreamingProtocols)
	}
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	o, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if run := s.running(w, r); run != nil {
		remotecommand.ServeAttach(w, r, executor{s}, "", "", run.ID, o, streamIdle, streamCreation,
			remotecommand.SupportedStreamingProtocols)
	}
}

func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	run := s.running(w, r)
	if run == nil {
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	out := locked{full: cancel}
	code, err := s.c.Runtime.Exec(ctx, run.ID, runtime.Exec{
		Command: r.URL.Query()["cmd"], Streams: runtime.Streams{Out: &out, Err: &out},
	})
	if cause := context.Cause(ctx); errors.Is(cause, errMuchOutput) {
		http.Error(w, cause.Error(), http.StatusInsufficientStorage)
		return
	}
	if err == nil && code != 0 {
		err = fmt.Errorf("command exited with %d: %s", code, out.buf.String())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(out.buf.Bytes())
}

// mostOutput limits the output of run, in bytes.
const mostOutput = 1 << 20

var errMuchOutput = fmt.Errorf("the command printed more than %d bytes and was stopped: use exec, which streams",
	mostOutput)

// locked buffers a command's output. Beyond mostOutput it discards the output and calls full.
type locked struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	full context.CancelCauseFunc
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buf.Len()+len(b) > mostOutput {
		l.full(errMuchOutput)
		return len(b), nil
	}
	return l.buf.Write(b)
}

// executor implements the streaming library's interfaces. Their container names are container IDs here.
type executor struct{ s *Server }

// session converts the library's streams to the runtime's. The returned context also ends when the server stops.
func (e executor) session(ctx context.Context, in io.Reader, out, err io.WriteCloser,
	resize <-chan remotecommand.TerminalSize) (context.Context, runtime.Streams, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(e.s.ctx, cancel)
	st := runtime.Streams{}
	if in != nil {
		st.In = in
	}
	if out != nil {
		st.Out = out
	}
	if err != nil {
		st.Err = err
	}
	if resize != nil {
		sizes := make(chan runtime.Size)
		st.Resize = sizes
		go func() {
			defer close(sizes)
			for {
				select {
				case <-ctx.Done():
					return
				case t, open := <-resize:
					if !open {
						return
					}
					select {
					case sizes <- runtime.Size{Width: t.Width, Height: t.Height}:
					case <-ctx.Done():
						return
					}
				}
			}
		}()
	}
	return ctx, st, func() { stop(); cancel() }
}

func (e executor) ExecInContainer(ctx context.Context, _, _, id string, cmd []string, in io.Reader,
	out, stderr io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	ctx, st, end := e.session(ctx, in, out, stderr, resize)
	defer end()
	code, err := e.s.c.Runtime.Exec(ctx, id, runtime.Exec{Command: cmd, TTY: tty, Streams: st})
	if err != nil {
		return err
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

func (e executor) AttachContainer(ctx context.Context, _, _, id string, in io.Reader, out, stderr io.WriteCloser,
	_ bool, resize <-chan remotecommand.TerminalSize) error {
	ctx, st, end := e.session(ctx, in, out, stderr, resize)
	defer end()
	return e.s.c.Runtime.Attach(ctx, id, st)
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	o, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	namespace, name := r.PathValue("namespace"), r.PathValue("pod")
	p, ok := s.c.Pods.Find(namespace, name, types.UID(r.PathValue("uid")))
	if !ok {
		http.Error(w, fmt.Sprintf("%v: %s/%s", errNoPod, namespace, name), http.StatusNotFound)
		return
	}
	portforward.ServePortForward(w, r, forwarder{s, p.Spec.HostNetwork}, name, string(p.UID), o, streamIdle,
		streamCreation, portforward.SupportedProtocols)
}

type forwarder struct {
	s    *Server
	host bool
}

// PortForward connects the stream to a port on the pod's loopback.
func (f forwarder) PortForward(ctx context.Context, name, uid string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	end, err := f.s.forwards.begin(uid)
	if err != nil {
		return err
	}
	defer end()
	conn, err := f.connect(ctx, uid, port)
	if err != nil {
		return fmt.Errorf("failed to connect to localhost:%d inside the pod %s: %w", port, name, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(f.s.ctx, func() { conn.Close(); stream.Close() })
	defer stop()
	back := make(chan error, 1)
	go func() {
		_, err := io.Copy(stream, conn)
		back <- err
	}()
	there := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, stream)
		if t, ok := conn.(*net.TCPConn); ok {
			_ = t.CloseWrite()
		}
		there <- err
	}()
	// The session ends when the pod closes its side; the client may send until then.
	err = <-back
	conn.Close()
	stream.Close()
	<-there
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
