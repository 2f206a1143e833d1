package socket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type backend struct {
	stops   int64 // bytes after which Load stops reading; 0 means at the end
	loaded  bytes.Buffer
	overlap time.Duration
}

// images implements only the methods that the test calls.
type images struct {
	*backend
}

func (images) List(context.Context) ([]runtime.Image, error)           { return nil, nil }
func (images) Get(context.Context, string) (runtime.Image, error)      { return runtime.Image{}, nil }
func (images) View(context.Context, string, string) ([]string, error)  { return nil, nil }
func (images) Usage(context.Context) (bytes, inodes uint64, err error) { return 0, 0, nil }
func (images) Unview(context.Context, string) error                    { return nil }

func (b *backend) Status(context.Context) Status { return Status{Running: true, Node: "raft"} }

func (b *backend) Health(context.Context) []Health { return []Health{{Component: "api", State: OK}} }

func (b *backend) Debug() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })
}

func (b *backend) Stop(_ context.Context, progress func(string)) error {
	progress("stopping pod a")
	return errors.New("pod a does not end")
}

func (b *backend) RotateServiceAccountKey(_ context.Context, overlap time.Duration) error {
	if overlap < 0 {
		return errors.New("not possible")
	}
	b.overlap = overlap
	return nil
}

func (b *backend) Authorities(context.Context) (Authorities, error) {
	return Authorities{List: []Authority{{Name: "client"}}}, nil
}

func (b *backend) ReplaceAuthorities(_ context.Context, names []string) (Authorities, error) {
	return Authorities{Replacing: true, List: []Authority{{Name: strings.Join(names, "+")}}}, nil
}

func (b *backend) FinishAuthorities(_ context.Context, names []string, force bool) (Authorities, error) {
	if !force {
		return Authorities{}, errors.New("node n1\nis behind")
	}
	return Authorities{List: []Authority{{Name: strings.Join(names, "-")}}}, nil
}

func (b *backend) Encryption(context.Context) (Encryption, error) {
	return Encryption{
		Enabled: true, Stored: []EncryptionCount{{EncryptionRule: EncryptionRule{Resource: "secrets"}, Objects: 3}},
	}, nil
}

func (b *backend) ChangeEncryption(action string, progress func(string)) error {
	if action != EncryptionRotate {
		return errors.New("no such action")
	}
	progress(action + " begins")
	return nil
}

func (b *backend) Images() runtime.Images { return images{b} }

// Load leaves what follows an end marker unread.
func (b *backend) Load(_ context.Context, r io.Reader) ([]runtime.Image, error) {
	if b.stops > 0 {
		r = io.LimitReader(r, b.stops)
	}
	_, err := io.Copy(&b.loaded, r)
	return []runtime.Image{{ID: "sha256:1"}}, err
}

func (b *backend) Pull(_ context.Context, ref string, _ []runtime.Auth,
	observe runtime.PullObserver) (runtime.Image, error) {
	observe.Progress(runtime.Progress{Done: 1, Total: 2})
	return runtime.Image{Names: []string{ref}}, nil
}

func (b *backend) Remove(context.Context, string) error { return runtime.ErrNotFound }

// TestAnArchiveThatGoesOn: neither side reports bytes of an archive that its reader did not want.
func TestAnArchiveThatGoesOn(t *testing.T) {
	var said lockedBuffer
	log.SetOutput(&said)
	defer log.SetOutput(os.Stderr)
	for _, more := range []int{100, 8 << 20} {
		dir, b := t.TempDir(), &backend{stops: 1000}
		server, ended := NewServer(dir, b), make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- server.Run(ctx) }()
		<-server.Ready()
		for range 3 {
			_, err := NewClient(dir).Load(t.Context(), bytes.NewReader(make([]byte, 1000+more)))
			require.NoError(t, err)
		}
		cancel()
		require.NoError(t, <-ended)
	}
	require.Empty(t, said.String())
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func TestControl(t *testing.T) {
	dir := t.TempDir()
	client := NewClient(dir)
	_, err := client.Status(t.Context())
	require.ErrorIs(t, err, ErrNotRunning)

	// a killed process leaves its socket
	require.NoError(t, os.WriteFile(filepath.Join(dir, Socket), nil, 0o600))
	b := &backend{}
	server := NewServer(dir, b)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- server.Run(ctx) }()
	<-server.Ready()

	status, err := client.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, "raft", status.Node)

	require.Empty(t, status.Health, "it was not asked for")
	status, err = client.Health(t.Context())
	require.NoError(t, err)
	require.Equal(t, OK, Worst(status.Health))
	raw, err := client.Read(t.Context(), "/debug/coracle/cache", 12)
	require.NoError(t, err)
	require.Equal(t, "/debug/corac", string(raw), "no more than the limit")
	_, err = client.Read(t.Context(), "/nothing", 12)
	require.ErrorIs(t, err, ErrNotServed)

	var events []Event
	err = client.Stop(t.Context(), func(e Event) { events = append(events, e) })
	require.EqualError(t, err, "pod a does not end")
	require.Equal(t, []Event{{Message: "stopping pod a"}}, events)

	archive := bytes.Repeat([]byte("tar"), 1<<20)
	last, err := client.Load(t.Context(), bytes.NewReader(archive))
	require.NoError(t, err)
	require.Equal(t, "sha256:1", last.Images[0].ID)
	require.Equal(t, archive, b.loaded.Bytes())

	events = nil
	last, err = client.Pull(t.Context(), "a/b:c&d", func(e Event) { events = append(events, e) })
	require.NoError(t, err)
	require.Equal(t, []string{"a/b:c&d"}, last.Images[0].Names)
	require.Equal(t, int64(1), events[0].Bytes)
	require.ErrorContains(t, client.Remove(t.Context(), "x"), "not found")

	require.NoError(t, client.RotateServiceAccountKey(t.Context(), 36*time.Hour))
	require.Equal(t, 36*time.Hour, b.overlap)
	require.ErrorContains(t, client.RotateServiceAccountKey(t.Context(), -time.Hour), "not possible")

	state, err := client.Authorities(t.Context())
	require.NoError(t, err)
	require.Equal(t, "client", state.List[0].Name)
	state, err = client.ReplaceAuthorities(t.Context(), []string{"client", "node"})
	require.NoError(t, err)
	require.True(t, state.Replacing)
	require.Equal(t, "client+node", state.List[0].Name)
	_, err = client.FinishAuthorities(t.Context(), nil, false)
	require.EqualError(t, err, "node n1\nis behind")
	state, err = client.FinishAuthorities(t.Context(), []string{"a", "b"}, true)
	require.NoError(t, err)
	require.Equal(t, "a-b", state.List[0].Name)

	encryption, err := client.Encryption(t.Context())
	require.NoError(t, err)
	require.Equal(t,
		Encryption{
			Enabled: true, Stored: []EncryptionCount{{EncryptionRule: EncryptionRule{Resource: "secrets"}, Objects: 3}},
		}, encryption)
	events = nil
	require.NoError(t,
		client.ChangeEncryption(t.Context(), EncryptionRotate, func(e Event) { events = append(events, e) }))
	require.Equal(t, []Event{{Message: "rotate-keys begins"}}, events)
	require.ErrorContains(t, client.ChangeEncryption(t.Context(), "other", nil), "no such action")

	info, err := os.Stat(filepath.Join(dir, Socket))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	cancel()
	require.NoError(t, <-ended)
	_, err = client.Status(t.Context())
	require.ErrorIs(t, err, ErrNotRunning)
}

// slow takes 10 minutes to stop its pods and reports no progress.
type slow struct{ backend }

func (*slow) Stop(_ context.Context, progress func(string)) error {
	time.Sleep(10 * time.Minute)
	progress("stopped pod a")
	return nil
}

func (*slow) Status(ctx context.Context) Status {
	<-ctx.Done()
	return Status{}
}

// TestAProcessIsWaitedForAsLongAsItIsAlive checks that the client waits for a live process without a limit, and not
// for a silent one.
func TestAProcessIsWaitedForAsLongAsItIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A real socket would block the bubble's clock, so use a pipe.
		near, far := net.Pipe()
		server := NewServer(t.TempDir(), &slow{})
		serving := &http.Server{Handler: server.handler()}
		done := make(chan error)
		go func() { done <- serving.Serve(&one{conn: far, closed: make(chan struct{})}) }()
		client := NewClient("")
		client.dial = func(context.Context) (net.Conn, error) { return near, nil }
		var events []Event
		require.NoError(t, client.Stop(t.Context(), func(e Event) { events = append(events, e) }))
		require.Equal(t, []Event{{Message: "stopped pod a"}}, events)
		require.NoError(t, serving.Close())
		<-done

		near, far = net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		began := time.Now()
		_, err := client.Status(t.Context())
		require.ErrorIs(t, err, ErrSilent)
		require.Equal(t, silence, time.Since(began))
		require.NoError(t, far.Close())
	})
}

type one struct {
	conn   net.Conn
	closed chan struct{}
	end    sync.Once
}

func (l *one) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *one) Close() error   { l.end.Do(func() { close(l.closed) }); return nil }
func (l *one) Addr() net.Addr { return &net.UnixAddr{} }
