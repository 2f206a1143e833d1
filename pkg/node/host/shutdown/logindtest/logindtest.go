// Package logindtest provides a system bus for tests, with a systemd-logind that shuts nothing down. It speaks
// D-Bus's wire protocol over a socket, so that it can serve the real client, also in another process.
package logindtest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/require"
)

const (
	busName    = "org.freedesktop.DBus"
	logindName = "org.freedesktop.login1"
	managerOf  = logindName + ".Manager"
	logindPath = dbus.ObjectPath("/org/freedesktop/login1")
)

// Patience is how long a test waits for an expected result.
const Patience = time.Minute

// Bus is a bus with its logind.
type Bus struct {
	t      testing.TB
	path   string
	listen *net.UnixListener
	done   sync.WaitGroup

	mu        sync.Mutex
	changed   chan struct{} // closed at each change of the fields below
	stopped   bool
	clients   map[*dbus.Conn][]string // match rules of each client
	delay     time.Duration
	preparing bool
	instance  int // logind's instance; 0 while it does not run
	last      int
	held      map[string]int // number of inhibitors, by what, who, why and mode
	pipes     []*os.File     // the pipes of all inhibitors
}

// New starts a bus, which stops at the end of the test.
func New(t testing.TB) *Bus {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus") // a socket's path must be short
	require.NoError(t, err)
	b := &Bus{
		t:       t,
		path:    filepath.Join(dir, "socket"),
		changed: make(chan struct{}),
		clients: map[*dbus.Conn][]string{},
		held:    map[string]int{},
		delay:   5 * time.Second,
	}
	b.Start()
	b.StartLogind()
	t.Cleanup(func() {
		b.Stop()
		b.mu.Lock()
		for _, f := range b.pipes {
			_ = f.Close()
		}
		b.mu.Unlock()
		b.done.Wait()
		_ = os.RemoveAll(dir)
	})
	return b
}

// Address returns the value for DBUS_SYSTEM_BUS_ADDRESS.
func (b *Bus) Address() string { return "unix:path=" + b.path }

// Start starts the bus again after Stop.
func (b *Bus) Start() {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.path, Net: "unix"})
	require.NoError(b.t, err)
	b.listen = l
	b.mu.Lock()
	b.stopped = false
	b.mu.Unlock()
	b.done.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			b.done.Go(func() { b.serve(c) })
		}
	})
}

// Stop stops the bus as if its process ended. logind and its inhibitors stay.
func (b *Bus) Stop() {
	_ = b.listen.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	for c := range b.clients {
		_ = c.Close()
	}
}

// StopLogind stops logind; inhibitors stay. StartLogind starts it as a new process.
func (b *Bus) StopLogind() { b.own(false) }

// StartLogind starts logind.
func (b *Bus) StartLogind() { b.own(true) }

func (b *Bus) own(runs bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.owner()
	b.instance = 0
	if runs {
		b.last++
		b.instance = b.last
	}
	b.notify()
	b.signal(busName, "/org/freedesktop/DBus", busName, "NameOwnerChanged", logindName, old, b.owner())
}

// owner returns logind's unique bus name. The caller must hold b.mu.
func (b *Bus) owner() string {
	if b.instance == 0 {
		return ""
	}
	return fmt.Sprintf(":1.%d", 1000+b.instance)
}

// SetDelay sets InhibitDelayMaxSec, initially 5 s.
func (b *Bus) SetDelay(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.delay = d
}

// Begin begins a shutdown, like `shutdown -h now`. Cancel takes it back.
func (b *Bus) Begin() { b.prepare(true) }

// Cancel cancels a shutdown.
func (b *Bus) Cancel() { b.prepare(false) }

func (b *Bus) prepare(begin bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.preparing = begin
	b.signal(b.owner(), logindPath, managerOf, "PrepareForShutdown", begin)
}

// Pretend sends every client a forged signal of a shutdown, as any user of the machine could.
func (b *Bus) Pretend() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.clients {
		c.Send(signal(":1.666", logindPath, managerOf, "PrepareForShutdown", true), nil)
	}
}

// signal sends a signal to the clients that subscribed to it. The caller must hold b.mu.
func (b *Bus) signal(sender string, path dbus.ObjectPath, of, member string, args ...any) {
	for c, rules := range b.clients {
		for _, rule := range rules {
			if strings.Contains(rule, "interface='"+of+"'") && strings.Contains(rule, "member='"+member+"'") {
				c.Send(signal(sender, path, of, member, args...), nil)
				break
			}
		}
	}
}

func signal(sender string, path dbus.ObjectPath, of, member string, args ...any) *dbus.Message {
	return &dbus.Message{Type: dbus.TypeSignal, Body: args, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldSender: dbus.MakeVariant(sender), dbus.FieldPath: dbus.MakeVariant(path),
		dbus.FieldInterface: dbus.MakeVariant(of),
		dbus.FieldMember:    dbus.MakeVariant(member), dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(args...)),
	}}
}

// notify wakes Await. The caller must hold b.mu.
func (b *Bus) notify() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Await waits until the given number of inhibitors is held, and returns them.
func (b *Bus) Await(inhibitors int) (held []string) {
	b.t.Helper()
	timeout := time.After(Patience)
	for {
		b.mu.Lock()
		held = held[:0]
		for text, n := range b.held {
			for range n {
				held = append(held, text)
			}
		}
		changed := b.changed
		b.mu.Unlock()
		if len(held) == inhibitors {
			return held
		}
		select {
		case <-changed:
		case <-timeout:
			require.Fail(b.t, "inhibitors", "%d are held, not %d: %v", len(held), inhibitors, held)
		}
	}
}

func (b *Bus) serve(raw *net.UnixConn) {
	defer raw.Close()
	if !authenticate(raw) {
		return
	}
	c, err := dbus.DialUnix(raw)
	if err != nil {
		return
	}
	defer c.Close()
	b.mu.Lock()
	stopped := b.stopped
	b.clients[c] = nil
	b.mu.Unlock()
	if stopped {
		_ = c.Close()
	}
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.clients, c)
	}()
	for {
		m, err := c.ReadMessage()
		if err != nil {
			return
		}
		if m.Type == dbus.TypeMethodCall {
			b.answer(c, m)
		}
	}
}

// authenticate is the server's side of the EXTERNAL mechanism, with file descriptors.
func authenticate(c *net.UnixConn) bool {
	line := func() string {
		var text []byte
		one := make([]byte, 1)
		for len(text) < 1024 {
			if n, err := c.Read(one); n == 0 || err != nil || one[0] == '\n' {
				break
			}
			text = append(text, one[0])
		}
		return strings.Trim(string(text), "\x00\r")
	}
	for {
		var answer string
		switch words := strings.Fields(line()); {
		case len(words) == 0:
			return false
		case words[0] == "BEGIN":
			return true
		case words[0] == "NEGOTIATE_UNIX_FD":
			answer = "AGREE_UNIX_FD"
		case words[0] == "DATA":
			answer = "OK 1234deadbeef"
		case len(words) == 1:
			answer = "REJECTED EXTERNAL"
		case len(words) == 2:
			answer = "DATA"
		default:
			answer = "OK 1234deadbeef"
		}
		if _, err := c.Write([]byte(answer + "\r\n")); err != nil {
			return false
		}
	}
}

func (b *Bus) answer(c *dbus.Conn, m *dbus.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := func(f dbus.HeaderField) string { s, _ := m.Headers[f].Value().(string); return s }
	reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(m.Serial()), dbus.FieldSender: dbus.MakeVariant(busName)}}
	fail := func(name string) {
		reply.Type = dbus.TypeError
		reply.Headers[dbus.FieldErrorName] = dbus.MakeVariant(name)
	}
	switch method := text(dbus.FieldInterface) + "." + text(dbus.FieldMember); {
	case method == busName+".Hello":
		reply.Body = []any{":1.1"}
	case method == busName+".AddMatch":
		b.clients[c] = append(b.clients[c], m.Body[0].(string))
	case text(dbus.FieldDestination) == logindName && b.instance == 0:
		fail(busName + ".Error.ServiceUnknown")
	case method == busName+".GetNameOwner" && b.instance == 0:
		fail(busName + ".Error.NameHasNoOwner")
	case method == busName+".GetNameOwner":
		reply.Body = []any{b.owner()}
	case method == busName+".Properties.Get" && m.Body[1] == "PreparingForShutdown":
		reply.Body = []any{dbus.MakeVariant(b.preparing)}
	case method == busName+".Properties.Get" && m.Body[1] == "InhibitDelayMaxUSec":
		reply.Body = []any{dbus.MakeVariant(uint64(b.delay.Microseconds()))}
	case method == managerOf+".Inhibit" && b.preparing:
		fail(logindName + ".OperationInProgress")
	case method == managerOf+".Inhibit":
		theirs, err := b.inhibit(m.Body)
		if err != nil {
			fail(busName + ".Error.Failed")
			break
		}
		defer theirs.Close() // after it is sent
		reply.Body = []any{dbus.UnixFD(theirs.Fd())}
	default:
		fail(busName + ".Error.UnknownMethod")
	}
	if len(reply.Body) > 0 {
		reply.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(reply.Body...))
	}
	c.Send(reply, nil)
}

// inhibit returns the file that the client closes to release the inhibitor. The caller must hold b.mu.
func (b *Bus) inhibit(args []any) (*os.File, error) {
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	name := strings.TrimSpace(fmt.Sprintln(args...))
	b.held[name]++
	b.pipes = append(b.pipes, ours)
	b.notify()
	b.done.Go(func() {
		_, _ = ours.Read(make([]byte, 1)) // ends when all copies of theirs are closed, or the test ends
		_ = ours.Close()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.held[name]--
		b.notify()
	})
	return theirs, nil
}
